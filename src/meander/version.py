"""The version of this Meander: ``md.__version__``, and what a store says of whoever made it."""

VERSION = "0.1.0"
