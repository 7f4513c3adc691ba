"""What the query unit's interface takes and gives, as its description (OpenAPI) states it."""
