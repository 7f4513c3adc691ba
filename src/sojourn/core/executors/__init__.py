"""Work outside the calling thread: processes, clusters, limits on time and memory, fair locks."""
