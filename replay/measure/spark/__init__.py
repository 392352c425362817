"""The only imports of pyspark."""
