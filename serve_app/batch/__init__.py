"""Files and batches of OpenAI's Batch API: their tables, their objects, and the checks of an input file."""
