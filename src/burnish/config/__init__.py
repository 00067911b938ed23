"""Run files: sections and fields (`schema*`), contradictions in them (`checks*`), presets and loading. No torch."""
