"""How answers are found in a text and compared, one file a kind; tasks and the ``evaluate`` modules share them."""
