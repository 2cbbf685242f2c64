import hf_lossy


def generate(model, *args, **kwargs):
    """``model.generate`` with a verification law; see the README for the arguments."""
    return hf_lossy.generate(model, *args, **kwargs)
