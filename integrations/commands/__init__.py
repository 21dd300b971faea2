"""Commands of the command line, one a file; ``cli.py`` names them."""
