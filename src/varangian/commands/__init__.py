"""Commands that are pages of their own, and what they share with those in `cli.py`."""
