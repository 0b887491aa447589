"""Replicas as processes: who starts them, watches them, brings them back and lets them go. Spark-free."""
