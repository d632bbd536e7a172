"""Whether a training that was run again goes on where it should: its iterations, and its losses."""
