{{/*
What no schema can say: values that contradict each other, and rules that the KubeRay operator has and the API server
does not enforce. Every problem is told at once, each in a sentence with its key, value and bound.
*/}}
{{- define "tideserve.checks" -}}
{{- /* Profiles first: what reads them counts on what they must have. */ -}}
{{- $problems := fromYamlArray (include "tideserve.checks.profiles" .) -}}
{{- if not $problems -}}
{{- $problems = concat
      (fromYamlArray (include "tideserve.checks.values" .))
      (fromYamlArray (include "tideserve.checks.pods" .))
      (fromYamlArray (include "tideserve.checks.names" .))
      (fromYamlArray (include "tideserve.checks.models" .))
      (fromYamlArray (include "tideserve.checks.groups" .))
      (fromYamlArray (include "tideserve.checks.labels" .))
      (fromYamlArray (include "tideserve.checks.drain" .))
      (fromYamlArray (include "tideserve.checks.operator" .))
      (fromYamlArray (include "tideserve.checks.parts.problems" .)) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values cannot work:\n  - %s" (join "\n  - " $problems)) -}}
{{- end -}}
{{- end -}}

{{/* Whether profiles have what their device needs, and nothing of the other's. */}}
{{- define "tideserve.checks.profiles" -}}
{{- $problems := list -}}
{{- $needed := dict "gpu" (list "accelerator_type" "gpuResource" "gpusPerNode" "perGpu") "cpu" (list "perPod") -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- range $device, $keys := $needed -}}
{{- range $key := $keys -}}
{{- $has := and (hasKey $profile $key) (not (kindIs "invalid" (get $profile $key))) -}}
{{- if and $has (ne $device $profile.device) -}}
{{- $problems = append $problems (printf "gpuProfiles.%s.%s = %s must be absent with device = %s" $name $key (toJson (get $profile $key)) $profile.device) -}}
{{- else if and (not $has) (eq $device $profile.device) -}}
{{- $problems = append $problems (printf "gpuProfiles.%s.%s is required with device = %s" $name $key $device) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.names" -}}
{{- $problems := list -}}
{{- $name := include "tideserve.fullname" . -}}
{{- if gt (len $name) 47 -}}
{{- $problems = append $problems (printf "the name %q has %d characters, and a RayService may have 47: set fullnameOverride, or a shorter release name" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) -}}
{{- $problems = append $problems (printf "the name %q must begin with a letter and hold lower-case letters, digits and dashes only: set fullnameOverride" $name) -}}
{{- end -}}
{{- if not .Values.image.repository -}}
{{- $problems = append $problems "image.repository is required: no image is published; build one from k8s/images and name it here" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.models" -}}
{{- $problems := list -}}
{{- if not .Values.models -}}
{{- $problems = append $problems "models is empty: name at least one, as in helm/tideserve/examples" -}}
{{- end -}}
{{- $names := dict -}}
{{- $arguments := .Files.Get "files/engine-arguments.yaml" | fromYaml -}}
{{- range $key, $model := .Values.models -}}
{{- $at := printf "models.%s" $key -}}
{{- $name := default $key $model.name -}}
{{- if hasKey $names $name -}}
{{- $problems = append $problems (printf "%s.name = %q is the name of models.%s too: clients could not tell them apart" $at $name (get $names $name)) -}}
{{- end -}}
{{- $_ := set $names $name $key -}}
{{- $profile := get $.Values.gpuProfiles $model.gpuProfile -}}
{{- $gpus := int (default 1 $model.tensor_parallel_size) -}}
{{- if not $profile -}}
{{- $problems = append $problems (printf "%s.gpuProfile = %q is none of gpuProfiles: %s" $at $model.gpuProfile (keys $.Values.gpuProfiles | sortAlpha | join ", ")) -}}
{{- else if and (eq $profile.device "cpu") (gt $gpus 1) -}}
{{- $problems = append $problems (printf "%s.tensor_parallel_size = %d must be 1 on gpuProfile %q, which has no GPUs" $at $gpus $model.gpuProfile) -}}
{{- else if eq $profile.device "gpu" -}}
{{- if gt $gpus (int $profile.gpusPerNode) -}}
{{- $problems = append $problems (printf "%s.tensor_parallel_size = %d is above gpuProfiles.%s.gpusPerNode = %d: the GPUs of a replica are on one node" $at $gpus $model.gpuProfile (int $profile.gpusPerNode)) -}}
{{- end -}}
{{- end -}}
{{- if $profile -}}
{{- $size := fromYaml (include "tideserve.podSize" (dict "profile" $profile "gpus" $gpus)) -}}
{{- $cpus := float64 (default 1 $model.cpus_per_replica) -}}
{{- if gt $cpus (float64 $size.cpu) -}}
{{- $problems = append $problems (printf "%s.cpus_per_replica = %v is above the %v CPUs of its pod: raise those of gpuProfiles.%s" $at $cpus $size.cpu $model.gpuProfile) -}}
{{- end -}}
{{- end -}}
{{- range $name, $argument := default dict $model.engine_args -}}
{{- if has $name $arguments.settings -}}
{{- $problems = append $problems (printf "%s.engine_args.%s = %s must be absent: a setting of Tideserve's own decides it" $at $name (toJson $argument)) -}}
{{- else if not (has $name $arguments.known) -}}
{{- $problems = append $problems (printf "%s.engine_args.%s = %s must be one of vLLM's arguments: it has none of that name" $at $name (toJson $argument)) -}}
{{- end -}}
{{- end -}}
{{- $problems = concat $problems (fromYamlArray (include "tideserve.checks.knobs" (dict "at" $at "model" $model))) -}}
{{- end -}}
{{- with default dict .Values.app.ingress.autoscaling -}}
{{- $least := int .min_replicas -}}
{{- $most := int (ternary .max_replicas 4 (hasKey . "max_replicas")) -}}
{{- if gt $least $most -}}
{{- $problems = append $problems (printf "app.ingress.autoscaling.min_replicas = %d is above max_replicas = %d" $least $most) -}}
{{- end -}}
{{- end -}}
{{- with .Values.app.ingress -}}
{{- $streams := dig "autoscaling" "target_ongoing_requests" 200.0 . | float64 -}}
{{- $most := default 10000 .max_ongoing_requests | float64 -}}
{{- if gt $streams $most -}}
{{- $problems = append $problems (printf "app.ingress.autoscaling.target_ongoing_requests = %v is above app.ingress.max_ongoing_requests = %v: it would never be reached, and nothing would scale" $streams $most) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* A model's knobs against each other and against its settings. Arguments: at, model. */}}
{{- define "tideserve.checks.knobs" -}}
{{- $problems := list -}}
{{- $at := .at -}}
{{- $knobs := default dict .model.autoscaling -}}
{{- $least := int (ternary $knobs.min_replicas 1 (hasKey $knobs "min_replicas")) -}}
{{- $most := int (ternary $knobs.max_replicas 1 (hasKey $knobs "max_replicas")) -}}
{{- if gt $least $most -}}
{{- $problems = append $problems (printf "%s.autoscaling.min_replicas = %d is above max_replicas = %d" $at $least $most) -}}
{{- end -}}
{{- range $index, $schedule := $knobs.schedules -}}
{{- if gt (int $schedule.min_replicas) $most -}}
{{- $problems = append $problems (printf "%s.autoscaling.schedules[%d].min_replicas = %d is above max_replicas = %d" $at $index (int $schedule.min_replicas) $most) -}}
{{- end -}}
{{- end -}}
{{- $queue := default 8 $knobs.queue_target_per_replica | float64 -}}
{{- $ongoing := default 1000 .model.max_ongoing_requests | float64 -}}
{{- if gt $queue $ongoing -}}
{{- $problems = append $problems (printf "%s.autoscaling.queue_target_per_replica = %v is above max_ongoing_requests = %v: so many never wait in a replica, and its queue would ask for nothing" $at $queue $ongoing) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Labels of pods that the operator and the chart select by. */}}
{{- define "tideserve.checks.labels" -}}
{{- $problems := list -}}
{{- range $place := list "head" "ingressWorkers" "engineWorkers" -}}
{{- range $label := keys (default dict (get $.Values $place).podLabels) | sortAlpha -}}
{{- if regexMatch "^(ray\\.io/.*|app\\.kubernetes\\.io/(name|part-of|instance|component|created-by))$" $label -}}
{{- $problems = append $problems (printf "%s.podLabels sets %s, which it must not: Services, budgets and the network policy find pods by it" $place $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Whether the pods of a group can hold what its models may ask for. */}}
{{- define "tideserve.checks.groups" -}}
{{- $problems := list -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- if eq $name "ingress" -}}
{{- $problems = append $problems "gpuProfiles.ingress must have another name: the pods of the ingress have that one" -}}
{{- else if eq $name "headgroup" -}}
{{- $problems = append $problems "gpuProfiles.headgroup must have another name: KubeRay calls the head's group so" -}}
{{- end -}}
{{- if gt (int $profile.minWorkers) (int $profile.maxWorkers) -}}
{{- $problems = append $problems (printf "gpuProfiles.%s.minWorkers = %d is above maxWorkers = %d" $name (int $profile.minWorkers) (int $profile.maxWorkers)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingressWorkers -}}
{{- if not (dig "requests" "cpu" "" (default dict .resources)) -}}
{{- $problems = append $problems "ingressWorkers.resources.requests.cpu is required: Ray is told of it before there is a pod" -}}
{{- end -}}
{{- if gt (int .minWorkers) (int .maxWorkers) -}}
{{- $problems = append $problems (printf "ingressWorkers.minWorkers = %d is above maxWorkers = %d" (int .minWorkers) (int .maxWorkers)) -}}
{{- end -}}
{{- end -}}
{{- $profiles := dict -}}
{{- range $key, $model := .Values.models -}}
{{- $group := include "tideserve.groupOf" $model -}}
{{- $other := get $profiles $group -}}
{{- if and $other (ne $other $model.gpuProfile) -}}
{{- $problems = append $problems (printf "gpuProfiles.%s and gpuProfiles.%s would both have the worker group %q, the one for tensor_parallel_size = %d: rename one" $other $model.gpuProfile $group (regexFind "[0-9]+$" $group | int)) -}}
{{- end -}}
{{- $_ := set $profiles $group (default "" $model.gpuProfile) -}}
{{- end -}}
{{- range $group, $its := fromYaml (include "tideserve.groups" .) -}}
{{- $profile := get $.Values.gpuProfiles (default "" $its.profile) -}}
{{- if $profile -}}
{{- $wanted := 0.0 -}}
{{- range $key := $its.models -}}
{{- $model := get $.Values.models $key -}}
{{- $knobs := default dict $model.autoscaling -}}
{{- $replicas := float64 (ternary $knobs.max_replicas 1 (hasKey $knobs "max_replicas")) -}}
{{- $each := 1.0 -}}
{{- if eq $profile.device "cpu" -}}
{{- $each = float64 (ternary $model.cpus_per_replica 1 (hasKey $model "cpus_per_replica")) -}}
{{- end -}}
{{- $wanted = addf $wanted (mulf $replicas $each) -}}
{{- end -}}
{{- $have := float64 $profile.maxWorkers -}}
{{- $what := "replicas" -}}
{{- if eq $profile.device "cpu" -}}
{{- $have = mulf $have (float64 $profile.perPod.cpu) -}}
{{- $what = "CPUs" -}}
{{- end -}}
{{- if gt $wanted (addf $have 0.000001) -}}
{{- $problems = append $problems (printf "models %s may want %v %s, and gpuProfiles.%s.maxWorkers = %d pods hold %v: raise it, or lower autoscaling.max_replicas" (join ", " $its.models) $wanted $what $its.profile (int $profile.maxWorkers) $have) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Streams end before the pods that carry them. */}}
{{- define "tideserve.checks.drain" -}}
{{- $problems := list -}}
{{- $drain := float64 .Values.app.drain_timeout_s -}}
{{- range $key, $model := .Values.models -}}
{{- if gt (float64 (default 0 $model.drain_timeout_s)) $drain -}}
{{- $problems = append $problems (printf "models.%s.drain_timeout_s = %v is above app.drain_timeout_s = %v, which decides how long pods live on: raise that one" $key $model.drain_timeout_s $drain) -}}
{{- end -}}
{{- end -}}
{{- $needed := int (include "tideserve.leastGracePeriod" .) -}}
{{- $given := int (include "tideserve.gracePeriod" .) -}}
{{- if lt $given $needed -}}
{{- $problems = append $problems (printf "terminationGracePeriodSeconds = %d is below the %d that preStopSeconds, app.drain_timeout_s = %v and 30 s to end need: streams would be cut; leave it null" $given $needed $drain) -}}
{{- end -}}
{{- $notice := add (include "tideserve.headNotice" . | int) (include "tideserve.headEnd" . | int) | int -}}
{{- if lt (include "tideserve.headGracePeriod" . | int) $notice -}}
{{- $problems = append $problems (printf "head.terminationGracePeriodSeconds = %s is below the %d that preStopSeconds = %d and 20 s to end need: it would be gone before workers have said that they drain" (include "tideserve.headGracePeriod" .) $notice (int .Values.preStopSeconds)) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Rules of KubeRay 1.7, whose operator would refuse the object only after the API server has taken it. */}}
{{- define "tideserve.checks.operator" -}}
{{- $problems := list -}}
{{- $upgrade := .Values.upgradeStrategy -}}
{{- if and (eq $upgrade.type "NewClusterWithIncrementalUpgrade") (not $upgrade.gatewayClassName) -}}
{{- $problems = append $problems "upgradeStrategy.gatewayClassName is required with type = NewClusterWithIncrementalUpgrade: the operator moves traffic with weighted routes of the Gateway API" -}}
{{- end -}}
{{- $places := dict "extraEnv" .Values.extraEnv "head.env" .Values.head.env "ingressWorkers.env" .Values.ingressWorkers.env -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- $_ := set $places (printf "gpuProfiles.%s.env" $name) $profile.env -}}
{{- end -}}
{{- $owned := dict
      "RAY_enable_autoscaler_v2" "the chart sets autoscalerOptions.version, and the operator refuses both"
      "RAY_REDIS_ADDRESS" "set gcsFaultTolerance.redisAddress"
      "REDIS_PASSWORD" "set gcsFaultTolerance.existingSecret"
      "REDIS_USERNAME" "set gcsFaultTolerance.usernameKey"
      "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" "it follows from app.drain_timeout_s"
      "RAY_gcs_rpc_server_reconnect_timeout_s" "it follows from app.drain_timeout_s"
      "RAY_AUTH_MODE" "the operator sets it, and the token of rayAuth.existingSecret"
      "RAY_AUTH_TOKEN" "set rayAuth.existingSecret"
      "RAY_AUTH_TOKEN_PATH" "set rayAuth.existingSecret"
      "HF_TOKEN" "set huggingFaceToken.existingSecret"
      "HF_HOME" "set modelCache.mountPath" -}}
{{- range $place := keys $places | sortAlpha -}}
{{- range get $places $place -}}
{{- if hasKey $owned .name -}}
{{- $problems = append $problems (printf "%s sets %s, which it must not: %s" $place .name (get $owned .name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
