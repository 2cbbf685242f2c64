"""The page as a Hugging Face Space, and for ``python demo/app.py``; the code is in ``hf_lossy/demo``."""

from pathlib import Path

from hf_lossy.demo import Backend, build_demo, launch

here = Path(__file__).parent
demo = build_demo(Backend(results=[here / "results", here.parent / "docs/results"], local=False))

if __name__ == "__main__":
    launch(demo)
