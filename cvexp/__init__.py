"""cvexp: which training tricks pay off on your images and your hardware."""

__version__ = "0.1.0"
