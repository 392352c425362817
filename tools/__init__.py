"""Tools to develop, demonstrate and measure the project. None of them is installed."""
