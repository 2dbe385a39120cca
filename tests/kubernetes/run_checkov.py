"""Run by the Python of .venv/checkov: the failed checks of a folder of manifests and Dockerfiles, as JSON.

Not checkov's own command: that imports the scanners of every other format, and twice as many packages.
"""

import json
import sys

from checkov.dockerfile.runner import Runner as DockerfileRunner
from checkov.kubernetes.runner import Runner as KubernetesRunner
from checkov.runner_filter import RunnerFilter

folder = sys.argv[1]
found = []
for runner, framework in ((KubernetesRunner(), "kubernetes"), (DockerfileRunner(), "dockerfile")):
    report = runner.run(root_folder=folder, runner_filter=RunnerFilter(framework=[framework]))
    found += [
        {
            "check": check.check_id,
            "name": check.check_name,
            "file": check.file_path,
            "resource": check.resource,
        }
        for check in report.failed_checks
    ]
    found += [
        {"check": "unreadable", "name": str(error), "file": str(error), "resource": ""}
        for error in report.parsing_errors
    ]
    found += [
        {"check": "nothing-scanned", "name": framework, "file": folder, "resource": ""}
        for _ in range(not report.passed_checks)
    ]
json.dump(found, sys.stdout)
