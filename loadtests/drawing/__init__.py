"""The parts that reports share: numbers for JSON, and pages."""
