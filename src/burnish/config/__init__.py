"""Run files: types (`schema`), loading with overrides and presets (`loading`), the printed plan (`plan`). No torch."""
