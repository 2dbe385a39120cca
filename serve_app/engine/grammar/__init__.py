"""The compile sandbox: clients' grammars are compiled in their own processes before the core gets them."""
