"""The Hugging Face room: the decoding loop behind ``model.generate`` (see ``attach.py`` for the door)."""
