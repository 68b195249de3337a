"""The lake: samples and records in sealed Parquet files, on a disk or in S3."""
