"""Stage `model`: which model, and where its weights come from."""

from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.outcome import CannotError
from benchmarks.gpu_proof.random_weights import make, parameters
from serve_app.settings.tree import EMBEDDED
from serve_app.weights import embedded_model_path


def find_model(bench: Bench) -> dict[str, Any]:
    """Return what vLLM is to load, and how. Makes random weights where the options ask for them."""
    options = bench.options
    if options.random_weights is not None:
        shape = options.random_weights
        how = "written" if options.checkpoint else "made up by vLLM while it starts"
        bench.say(f"random weights of {shape} ({parameters(shape) / 1e6:,.1f} million parameters), {how}")
        try:
            folder = make(shape, bench.store.folder.resolve() / "models", checkpoint=options.checkpoint)
        except OSError as error:
            raise CannotError(f"the model cannot be written: {error.strerror}") from None
        return {
            "model": str(folder),
            "title": f"random weights of {shape}, {how}",
            "parameters": parameters(shape),
            "load_format": "auto" if options.checkpoint else "dummy",
        }
    if options.model is None or options.model == EMBEDDED:
        return {"model": str(embedded_model_path()), "title": "the embedded model", "load_format": "auto"}
    folder = Path(options.model)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise CannotError(f"--model = {folder}: the folder has no config.json")
    name = str(folder.resolve()) if folder.is_dir() else options.model
    return {"model": name, "title": options.model, "load_format": "auto"}
