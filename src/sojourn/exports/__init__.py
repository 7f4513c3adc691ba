"""What was measured, in the forms that other systems take: Prometheus, OTLP, Parquet, a dashboard of Grafana."""
