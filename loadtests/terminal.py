"""Load tests on a terminal of 100 columns, and as plain text anywhere else."""

from loadtests.comparison_text import print_comparison
from loadtests.summary_text import print_summary

__all__ = ["print_comparison", "print_summary"]
