"""The RayService: its worker groups, what pods are told, and the Serve configuration in it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.serve.schema import ServeDeploySchema

from serve_app import env
from serve_app.app import build
from serve_app.cli.config_file import ConfigFile, read_config
from serve_app.cluster.placement import replica_resources
from tests.kubernetes import crd, kubernetes_api
from tests.kubernetes.chart import A100, ALL_VALUES, LAPTOP, Document, ray_service, rendered, serve_config
from tests.kubernetes.tools import CHART, needs_crds

EVERYTHING = CHART / "ci/everything-values.yaml"
_OF_THE_OPERATOR = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""KubeRay sets these with `authOptions.mode: token`, and leaves them alone where they are set already."""
each_values = pytest.mark.parametrize("values", ALL_VALUES, ids=lambda path: path.stem)


def cluster(values: Path, *sets: str) -> Document:
    found: Document = ray_service(values, *sets)["spec"]["rayClusterConfig"]
    return found


def groups(values: Path, *sets: str) -> dict[str, Document]:
    return {group["groupName"]: group for group in cluster(values, *sets)["workerGroupSpecs"]}


def templates(values: Path, *sets: str) -> dict[str, Document]:
    """Pod templates: `head`, and worker groups by name."""
    found = {name: group["template"] for name, group in groups(values, *sets).items()}
    return {"head": cluster(values, *sets)["headGroupSpec"]["template"], **found}


def variables(template: Document) -> dict[str, Any]:
    container = template["spec"]["containers"][0]  # sidecars come after it
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def checked(values: Path, folder: Path) -> ConfigFile:
    file = folder / "serve.yaml"
    file.write_text(ray_service(values)["spec"]["serveConfigV2"])
    return read_config(file)


@each_values
def test_the_serve_configuration_is_valid(values: Path, tmp_path: Path) -> None:
    ServeDeploySchema.model_validate(serve_config(values))
    settings = checked(values, tmp_path).applications["tideserve"].settings
    given = yaml.safe_load(values.read_text())["models"]
    assert {model.name for model in settings.models} == {its.get("name", key) for key, its in given.items()}


@each_values
def test_ray_plans_one_group_for_each_replica(values: Path, tmp_path: Path) -> None:
    custom_resource = {"metadata": {"name": "x", "namespace": "llm"}, "spec": cluster(values)}
    derived = autoscaling_config._derive_autoscaling_config_from_ray_cr(custom_resource)
    kinds = {name: kind["resources"] for name, kind in derived["available_node_types"].items()}
    settings = checked(values, tmp_path).applications["tideserve"].settings
    for model in settings.models:
        needed = replica_resources(model)
        fitting = [
            name
            for name, has in kinds.items()
            if all(has.get(resource, 0) >= amount for resource, amount in needed.items())
        ]
        assert len(fitting) == 1, f"{model.name} needs {needed}, which {fitting} of {kinds} have"
    needed = {"CPU": settings.ingress.cpus_per_replica, **settings.ingress.resources}
    assert [n for n, has in kinds.items() if all(has.get(r, 0) >= a for r, a in needed.items())] == [
        "ingress"
    ]


def test_the_batch_runner_fits_on_the_head_only() -> None:
    sets = ('app.batch={"enabled": true, "database": "postgresql://db/batch", "files": "s3://b"}',)
    custom_resource = {"metadata": {"name": "x", "namespace": "llm"}, "spec": cluster(A100, *sets)}
    derived = autoscaling_config._derive_autoscaling_config_from_ray_cr(custom_resource)
    kinds = {name: kind["resources"] for name, kind in derived["available_node_types"].items()}
    [args] = [app["args"] for app in serve_config(A100, *sets)["applications"]]

    runner = build(args)._bound_deployment.init_kwargs["batch_runner"]._bound_deployment

    assert runner.ray_actor_options == {"num_cpus": 0, "resources": {"batch-runner": 0.001}}
    assert [name for name, has in kinds.items() if "batch-runner" in has] == ["headgroup"]
    assert kinds["headgroup"]["batch-runner"] == 1


@each_values
def test_a_gpu_pod_holds_one_replica(values: Path) -> None:
    for name, group in groups(values).items():
        gpus = group["resources"].get("GPU")
        container = group["template"]["spec"]["containers"][0]
        asked = container["resources"]
        assert asked["requests"] == asked["limits"]
        assert asked["limits"].get("nvidia.com/gpu") == gpus
        if gpus is not None:
            assert group["resources"][f"{name}:replicas"] == "1"


def test_a_tensor_parallel_pod_has_the_gpus_of_its_replica() -> None:
    group = groups(CHART / "examples/tensor-parallel.yaml")["a100-80gb-x4"]
    container = group["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"cpu": "40", "memory": "400Gi", "nvidia.com/gpu": "4"}
    assert (group["minReplicas"], group["maxReplicas"]) == (0, 2)


def test_the_head_runs_no_replicas_and_serves_no_requests() -> None:
    head = cluster(A100)["headGroupSpec"]
    assert head["resources"] == {"CPU": "0", "GPU": "0", "batch-runner": "1"}
    # The operator refuses a group with resources in both fields.
    assert not {"num-cpus", "num-gpus", "memory", "resources"} & head["rayStartParams"].keys()
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert ray_service(A100)["spec"]["excludeHeadPodFromServeSvc"] is True


def test_only_kuberays_autoscaler_v2_sets_replicas() -> None:
    found = cluster(A100)
    assert found["enableInTreeAutoscaling"] is True
    assert found["autoscalerOptions"]["version"] == "v2"
    assert "HorizontalPodAutoscaler" not in rendered(A100)
    assert groups(A100)["a100-80gb"]["minReplicas"] == 0
    assert groups(A100)["ingress"]["minReplicas"] == 2


@each_values
def test_every_pod_has_ray_flags_of_the_application(values: Path) -> None:
    fast = yaml.safe_load(values.read_text()).get("fastDataPath", True)
    for name, template in templates(values).items():
        found = variables(template)
        for flag, value in {**env.ALWAYS, **({**env.FAST_PATH, **env.HAPROXY} if fast else {})}.items():
            assert found.get(flag) == value, f"{name}: {flag}"
        assert fast or "RAY_SERVE_ENABLE_HA_PROXY" not in found
        # The program that the images have; `tideserve run` writes one of its own.
        assert found.get(env.HAPROXY_COMMAND) == ("/opt/tideserve/bin/tideserve-front" if fast else None)


@each_values
def test_drain_pre_stop_and_grace_follow_from_the_longest_generation(values: Path, tmp_path: Path) -> None:
    given = yaml.safe_load(values.read_text())
    drain = given.get("app", {}).get("drain_timeout_s", 600)
    settings = checked(values, tmp_path).applications["tideserve"].settings
    assert max(model.drain_timeout_s for model in settings.models) <= drain
    assert ray_service(values)["spec"]["rayClusterDeletionDelaySeconds"] >= drain
    for name, group in groups(values).items():
        template = group["template"]
        pod = template["spec"]
        container = pod["containers"][0]
        notice_s = given.get("gpuProfiles", {}).get(name, {}).get("noticeSeconds")
        announces = ["python", "-m", "serve_app.cluster.node_end", "--in", str(notice_s), "--wait"]
        waits = announces if notice_s else ["/bin/sh", "-c", "sleep 10"]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == waits, name
        assert pod["terminationGracePeriodSeconds"] >= 10 + drain + 30
        flags = variables(template)
        assert flags["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == str(drain)
        # The head may go first: without it a worker must not end before its streams.
        assert int(flags["RAY_gcs_rpc_server_reconnect_timeout_s"]) >= drain
        if "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" in flags:
            assert int(flags["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > drain


def test_two_ingress_pods_spread_over_nodes() -> None:
    single = CHART / "examples/single-gpu.yaml"
    user_config = serve_config(single)["applications"][0]["deployments"][0]["user_config"]
    assert user_config["ingress"]["min_replicas"] == 2
    group = groups(single)["ingress"]
    assert (group["replicas"], group["minReplicas"]) == (2, 2)
    [spread] = group["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"  # a cluster of one node has both
    labels = group["template"]["metadata"]["labels"]
    assert spread["matchLabelKeys"] == ["ray.io/cluster"]  # not over both clusters of an upgrade
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "ingress"


def test_given_spread_constraints_replace_the_default() -> None:
    own = '[{"maxSkew":2,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]'
    pod = templates(A100, f"ingressWorkers.topologySpreadConstraints={own}")["ingress"]["spec"]
    assert [spread["topologyKey"] for spread in pod["topologySpreadConstraints"]] == ["zone"]
    anywhere = templates(A100, "ingressWorkers.topologySpreadConstraints=[]")["ingress"]["spec"]
    assert "topologySpreadConstraints" not in anywhere


@each_values
def test_the_head_stops_within_its_own_grace_period(values: Path) -> None:
    pod = templates(values, "app.drain_timeout_s=7200", "terminationGracePeriodSeconds=null")["head"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60
    flags = variables({"spec": pod})
    # Ray Serve's controller runs there, so that it is never idle, which is what a wait to drain waits for.
    assert flags["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:3] == ["python", "-m", "serve_app.cluster.head_pod_shutdown"]
    wait = dict(zip(command[3::2], command[4::2], strict=True))
    assert wait == {"--address": "127.0.0.1:6379", "--notice": "15", "--timeout": "45"}


@each_values
def test_every_pod_keeps_rays_token_authentication(values: Path) -> None:
    assert cluster(values)["authOptions"]["mode"] == "token"
    autoscaler = cluster(values)["autoscalerOptions"].get("env", [])
    for name, template in {**templates(values)}.items():
        assert not _OF_THE_OPERATOR & variables(template).keys(), name
    assert not _OF_THE_OPERATOR & {variable["name"] for variable in autoscaler}


def test_the_token_can_come_from_an_existing_secret() -> None:
    assert cluster(A100)["authOptions"] == {"mode": "token"}  # the operator makes one for each cluster
    own = cluster(A100, 'rayAuth.existingSecret="ray-token"')["authOptions"]
    assert own == {"mode": "token", "secretName": "ray-token"}


def test_secrets_reach_only_those_that_need_them() -> None:
    found = templates(EVERYTHING)
    with_token = {name for name, template in found.items() if "HF_TOKEN" in variables(template)}
    assert with_token == {"l4", "h100-x8-large", "mine"}
    sources = [template["spec"]["containers"][0]["envFrom"] for template in found.values()]
    assert sources == [[{"secretRef": {"name": "bucket"}}]] * len(found)
    with_keys = {
        name
        for name, template in found.items()
        if any(volume["name"] == "api-keys" for volume in template["spec"]["volumes"])
    }
    assert with_keys == {"ingress"}
    args = serve_config(EVERYTHING)["applications"][0]["args"]
    assert args["http"]["api_keys_file"] == "/etc/tideserve/secrets/api-keys"
    with_rights = {n for n, t in found.items() if t["spec"]["automountServiceAccountToken"]}
    assert with_rights == {"head"}


@each_values
def test_pods_are_restricted(values: Path) -> None:
    for template in templates(values).values():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = pod["containers"][0]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/home/tideserve", "/dev/shm"} <= writable


def test_every_pod_has_the_sidecars_and_the_scheduler() -> None:
    for template in templates(EVERYTHING).values():
        spec = template["spec"]
        assert [container["name"] for container in spec["containers"]][1:] == ["logs"]
        assert [container["name"] for container in spec["initContainers"]] == ["certificate", "wait"]
        assert spec["schedulerName"] == "volcano"


def test_only_the_init_container_has_the_authoritys_key() -> None:
    assert cluster(A100, "rayTls.enabled=true")["tlsOptions"] == {"enabled": True}
    assert "tlsOptions" not in {**cluster(EVERYTHING), **cluster(A100)}
    files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
    tls = [{"name": f"RAY_TLS_{key}", "value": f"/etc/tideserve/tls/{files[key]}"} for key in files]
    for name, template in templates(EVERYTHING).items():
        maker, ray = template["spec"]["initContainers"][0], template["spec"]["containers"][0]
        assert ("$(FQ_RAY_IP)" in maker["command"]) is (name == "head")
        assert {mount["name"] for mount in maker["volumeMounts"]} == {"ray-ca", "ray-tls"}
        for box in (ray, cluster(EVERYTHING)["autoscalerOptions"]):
            mounted = {mount["name"]: mount.get("readOnly") for mount in box["volumeMounts"]}
            assert (mounted["ray-tls"], "ray-ca" in mounted) == (True, False)
            assert [each for each in box["env"] if each["name"].startswith("RAY_TLS_")] == tls


def test_a_custom_profile_places_its_pods() -> None:
    group = groups(EVERYTHING)["mine"]
    pod = group["template"]["spec"]
    assert group["resources"]["accelerator_type:L40S"] == "1"
    assert pod["nodeSelector"] == {"pool": "l40s"}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"][0]["key"] == "pool"


def test_upgrade_strategies() -> None:
    assert ray_service(A100)["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
    assert ray_service(A100, 'upgradeStrategy.type="None"')["spec"]["upgradeStrategy"] == {"type": "None"}
    assert ray_service(CHART / "ci/host-path-values.yaml")["spec"]["upgradeStrategy"] == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": "istio",
            "stepSizePercent": 10,
            "intervalSeconds": 30,
            "maxSurgePercent": 10,
        },
    }


def test_large_numbers_are_written_as_integers() -> None:
    assert "kv_cache_memory_bytes: 134217728\n" in ray_service(LAPTOP)["spec"]["serveConfigV2"]
    assert "max_bytes: 1073741824\n" in ray_service(EVERYTHING)["spec"]["serveConfigV2"]


def test_the_laptop_values_are_the_configuration_for_a_laptop() -> None:
    ours = serve_config(LAPTOP)["applications"][0]
    theirs = yaml.safe_load((CHART.parents[1] / "config/serve.zero.yaml").read_text())["applications"][0]
    [model], [same] = ours["args"]["models"], theirs["args"]["models"]
    assert {key: model[key] for key in same} == same
    assert ours["deployments"] == theirs["deployments"]
    assert ours["autoscaling_policy"] == theirs["autoscaling_policy"]


def test_a_profile_with_the_required_keys_renders() -> None:
    profile = (
        '{"device":"gpu","accelerator_type":"B200","gpuResource":"nvidia.com/gpu","gpusPerNode":8,'
        '"perGpu":{"cpu":"8","memory":"64Gi","shm":"8Gi"},'
        '"minWorkers":0,"maxWorkers":8,"idleTimeoutSeconds":60}'
    )
    sets = (f"gpuProfiles.b200={profile}", 'models.qwen-7b.gpuProfile="b200"')
    assert groups(A100, *sets)["b200"]["resources"]["accelerator_type:B200"] == "1"


@each_values
def test_pods_have_no_labels_of_kuberay(values: Path) -> None:
    for template in templates(values).values():
        labels = template["metadata"]["labels"]
        assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & labels.keys()
        assert not any(name.startswith("ray.io/") for name in labels)


def test_what_users_set_wins_over_the_chart_once() -> None:
    """The API server refuses a container that has a variable twice."""
    log = '[{"name":"RAY_USAGE_STATS_ENABLED","value":"1"},{"name":"A","value":"all"}]'
    head = '[{"name":"RAY_SERVE_HAPROXY_MAXCONN","value":"9"},{"name":"A","value":"head"}]'
    found = templates(A100, f"extraEnv={log}", f"head.env={head}")
    for name, template in found.items():
        names = [variable["name"] for variable in template["spec"]["containers"][0]["env"]]
        assert len(names) == len(set(names)), name
        values = variables(template)
        assert values["RAY_USAGE_STATS_ENABLED"] == "1"
        assert values["A"] == ("head" if name == "head" else "all")
    assert variables(found["head"])["RAY_SERVE_HAPROXY_MAXCONN"] == "9"


def test_every_volume_that_ray_writes_to_is_bounded() -> None:
    """The operator adds a volume without a limit at /tmp/ray of the head, unless there is one."""
    for template in templates(A100, 'tmpSizeLimit="7Gi"').values():
        written = [volume for volume in template["spec"]["volumes"] if volume["name"] != "api-keys"]
        limits = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in written}
        at = {
            mount["mountPath"]: mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]
        }
        assert limits[at["/tmp"]] == "7Gi"
        assert limits["ray-logs"] == "7Gi"
        # By this name the operator mounts it into the autoscaler.
        assert at["/tmp/ray"] == "ray-logs"


def test_sidecars_mount_every_volume_that_all_their_pods_have() -> None:
    mounts = '[{"name":"ray-logs","mountPath":"/logs"},{"name":"shm","mountPath":"/dev/shm"}]'
    sidecar = f'extraContainers=[{{"name":"logs","image":"x","volumeMounts":{mounts}}}]'
    for template in templates(A100, sidecar).values():
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        assert {mount["name"] for mount in template["spec"]["containers"][1]["volumeMounts"]} <= volumes


def test_a_model_can_run_on_any_gpu() -> None:
    single = CHART / "examples/single-gpu.yaml"
    assert not [name for name in groups(single)["any-gpu"]["resources"] if "accelerator" in name]
    assert serve_config(single)["applications"][0]["args"]["models"][0]["accelerator_type"] is None
    assert "nodeSelector" not in templates(single)["any-gpu"]["spec"]


def test_engines_share_compiled_kernels_only_on_the_volume() -> None:
    claim, off = 'modelCache={"type":"pvc"}', "modelCache.compiled=false"
    for sets, folders in (((claim,), {"cpu": "/models/.compiled"}), ((claim, off), {}), ((), {})):
        found = {
            name: variables(template).get(env.COMPILE_CACHE)
            for name, template in templates(LAPTOP, *sets).items()
        }
        assert {name: folder for name, folder in found.items() if folder} == folders


@needs_crds
def test_gpus_may_be_claimed_instead_of_counted() -> None:
    sets = ('gpuProfiles.a100-80gb.resourceClaimTemplate="one-gpu"', "models.qwen-7b.tensor_parallel_size=2")
    service = ray_service(A100, *sets)
    [_, group] = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["resourceClaims"] == [
        {"name": f"gpu-{n}", "resourceClaimTemplateName": "one-gpu"} for n in (0, 1)
    ]
    resources = pod["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]
    assert "nvidia.com/gpu" not in resources["limits"]
    assert group["resources"]["GPU"] == "2"
    as_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    assert kubernetes_api.problems(as_pod, "1.36") == []
    assert crd.problems(service) == []


def test_a_profile_has_its_own_priority_and_spread() -> None:
    spread = '[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]'
    engines = 'engineWorkers={"priorityClassName":"engines","topologySpreadConstraints":[]}'
    own = (
        f"gpuProfiles.a100-80gb.topologySpreadConstraints={spread}",
        'gpuProfiles.a100-80gb.priorityClassName="urgent"',
    )
    for sets, wanted in (((engines,), ("engines", None)), ((engines, *own), ("urgent", "zone"))):
        groups = ray_service(A100, *sets)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        [pod] = [group["template"]["spec"] for group in groups if group["groupName"].startswith("a100-80gb")]
        constraints = pod.get("topologySpreadConstraints", [{"topologyKey": None}])
        assert (pod["priorityClassName"], constraints[0]["topologyKey"]) == wanted


@pytest.mark.parametrize("name", ["nvidia.com/mig-mine", "nvidia.com/gpu-quarter", "nvidia.com/a100.shared"])
def test_a_device_plugin_may_have_names_of_its_own(name: str) -> None:
    assert name in rendered(A100, f'gpuProfiles.a100-80gb.gpuResource="{name}"')
