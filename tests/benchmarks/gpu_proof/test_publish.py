import pytest

from benchmarks.gpu_proof.outcome import RefusedError
from benchmarks.gpu_proof.publish import publish
from replay.profile import load_profile
from tests.benchmarks.gpu_proof.proofs import done
from tests.benchmarks.gpu_proof.test_page import MEASURED, document

PROFILE = load_profile("l4").model_dump(mode="json") | {"name": "l4", "fit_error": 0.03}
GPU = {"device": "gpu", "gpu": "1 x NVIDIA L4", "model": "org/Llama 8B"}


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "replay" / "profiles").mkdir(parents=True)
    (tmp_path / "README.md").write_text(
        "before\n<!-- GPU proofs -->\nold\n<!-- end of GPU proofs -->\nafter\n"
    )
    return tmp_path


def proof(folder, **identity: str):
    measured = MEASURED | {"capacity": MEASURED["capacity"] | {"profile": PROFILE}}
    measured["capacity"]["knee"] = {"rps": 6.2, "bound": "ITL", "ttft_s": 0.1, "itl_s": 0.02}
    return document(folder, [done(stage, **figures) for stage, figures in measured.items()], **identity)


def test_a_proof_becomes_a_page_pictures_figures_a_profile_and_a_row(repository) -> None:
    written = publish(proof(repository / "proof", **GPU), repository)

    name = "l4-org-llama-8b"
    assert load_profile(repository / "replay" / "profiles" / f"{name}.yaml").name == name
    page = (repository / "docs/benchmarks/gpu" / f"{name}.md").read_text()
    assert "*1 x NVIDIA L4, 2026-01-02*" in page
    assert f"![The capacity of one replica]({name}-capacity.png)" in page
    assert all(path.exists() for path in written)
    readme = (repository / "README.md").read_text()
    assert readme.startswith("before\n<!-- GPU proofs -->")
    assert readme.endswith("<!-- end of GPU proofs -->\nafter\n")
    [row] = [line for line in readme.splitlines() if name in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == f"[1 x NVIDIA L4, org/Llama 8B, 2026-01-02](docs/benchmarks/gpu/{name}.md)"
    assert cells[1:] == ["6.2", "100 ms", "20 ms", "21.0 s", "21.0 s"]


def test_a_second_proof_adds_a_row_and_the_same_once_more_replaces_its_own(repository) -> None:
    for model in ("org/a", "org/b", "org/a"):
        publish(proof(repository / "proofs" / model, **GPU | {"model": model}), repository)

    readme = (repository / "README.md").read_text()
    assert [readme.count(model) for model in ("org/a", "org/b", "\nold\n")] == [1, 1, 0]


def test_a_rehearsal_is_refused_and_nothing_is_written(repository) -> None:
    with pytest.raises(RefusedError, match="nothing of it is taken for a GPU's"):
        publish(proof(repository / "proof"), repository)
    assert "old" in (repository / "README.md").read_text()
    assert not list((repository / "replay" / "profiles").iterdir())


def test_a_proof_without_a_capacity_is_refused(repository) -> None:
    begun = document(repository / "proof", [done("model", **MEASURED["model"])], **GPU)
    with pytest.raises(RefusedError, match="no capacity yet"):
        publish(begun, repository)


def test_a_readme_without_the_comments_is_refused_by_name(repository) -> None:
    (repository / "README.md").write_text("nothing")
    with pytest.raises(RefusedError, match=r"README\.md has no <!-- GPU proofs -->"):
        publish(proof(repository / "proof", **GPU), repository)
