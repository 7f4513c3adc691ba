"""Charts: plain functions from columns of answers to ECharts options, for pages and reports alike."""
