"""Other people's scripts, unchanged: uPlot 1.6.32 (MIT), from its npm package."""
