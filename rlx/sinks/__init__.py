"""Where results go while a program runs: the console, and parquet files."""
