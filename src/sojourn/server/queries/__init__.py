"""The query engine: questions to streams, live epochs, worker processes, answers."""
