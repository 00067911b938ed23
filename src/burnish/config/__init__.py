"""Run files: sections and fields (`schema*`), checks for contradictions (`checks*`), presets and loading. No torch."""
