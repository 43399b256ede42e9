"""The checks of python_features.py, by what they look at."""
