"""Tables and plots from stored results: long tables with columns `run, seed, step, return, ...`."""

from rlx.report.plots import learning_curve
from rlx.report.tables import cell, summary_table, to_csv, to_latex, to_markdown

__all__ = ["cell", "learning_curve", "summary_table", "to_csv", "to_latex", "to_markdown"]
