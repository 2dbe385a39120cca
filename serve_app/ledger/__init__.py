"""What each API key used: tokens, GPU-seconds and money, in a database."""
