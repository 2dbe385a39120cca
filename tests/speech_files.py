"""Audio files with a single tone."""

import io

import numpy as np
import soundfile


def tone(hz: float, seconds: float = 1.0, rate: int = 16_000, kind: str = "WAV", channels: int = 1) -> bytes:
    wave = 0.3 * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)
    file = io.BytesIO()
    soundfile.write(file, np.stack([wave] * channels, axis=1), rate, format=kind)
    return file.getvalue()


TONE = tone(440)
