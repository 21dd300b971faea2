"""The integrations room: where a decoding loop meets the outside (Hugging Face, command line, pipelines)."""
