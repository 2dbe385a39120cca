{{/*
Mistakes that no schema can describe: values of different sections that contradict each other. Every define prints its
problems, one a line, each with its key, value and bound. All of them are reported at once.
*/}}
{{- define "tideserve.checks" -}}
{{- $problems := list -}}
{{- range $part := list "values" "names" "models" "groups" "stores" "ingress" "pods" "drain" "cache" "network" "rights" "tests" -}}
{{- range $line := include (printf "tideserve.checks.%s" $part) $ | splitList "\n" | compact -}}
{{- $problems = append $problems (printf "\n  - %s" $line) -}}
{{- end -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values cannot work:%s" (join "" $problems)) -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.names" -}}
{{- $name := include "tideserve.fullname" . -}}
{{- if gt (len $name) 45 }}
the name {{ quote $name }} has {{ len $name }} characters, and may have 45, because the operator cuts the head's account, {{ $name }}-head, to its last 50: set fullnameOverride, or a shorter release name
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) }}
the name {{ quote $name }} must begin with a letter and hold lower-case letters, digits and dashes only: set fullnameOverride
{{- end -}}
{{- if and (.Capabilities.APIVersions.Has "ray.io/v1/RayService") (not (.Capabilities.APIVersions.Has "ray.io/v1/RayCronJob")) }}
the KubeRay operator of this cluster is older than 1.6, and the chart needs 1.7: upgrade the operator and its CRDs
{{- end -}}
{{- $keys := dict -}}
{{- range $index, $entry := .Values.apiKeys.entries -}}
{{- if eq $entry.name "other" }}
apiKeys.entries[{{ $index }}].name = "other" is the name of the sum of further keys
{{- end -}}
{{- if hasKey $keys $entry.name }}
apiKeys.entries[{{ $index }}].name = {{ quote $entry.name }} is the name of apiKeys.entries[{{ get $keys $entry.name }}] too: usage is counted by name
{{- end -}}
{{- $_ := set $keys $entry.name $index -}}
{{- end -}}
{{- if not .Values.image.repository }}
image.repository is required: no image is published; build one from k8s/images and name it here
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.models" -}}
{{- if not .Values.models }}
models is empty: name at least one, as in helm/tideserve/examples
{{- end -}}
{{- $names := dict -}}
{{- $deployments := dict -}}
{{- range $key, $model := .Values.models -}}
{{- $at := printf "models.%s" $key -}}
{{- $name := default $key $model.name -}}
{{- $deployment := regexReplaceAll "[^A-Za-z0-9_-]+" $name "-" -}}
{{- if eq $name "ingress" }}
{{ $at }}{{ ternary ".name" "" (not (empty $model.name)) }} = "ingress" is a reserved name: `tideserve knobs set ingress` changes the knobs of the ingress. Set {{ $at }}.name to another
{{- end -}}
{{- if hasKey $names $name }}
{{ $at }}.name = {{ quote $name }} is the name of models.{{ get $names $name }} too: clients could not tell them apart
{{- else if hasKey $deployments $deployment }}
{{ $at }}.name = {{ quote $name }} and {{ get $deployments $deployment | quote }} are the same deployment to Ray Serve, Engine-{{ $deployment }}: they must differ in letters or digits
{{- end -}}
{{- $_ := set $names $name $key -}}
{{- $_ := set $deployments $deployment $name -}}
{{- $profile := get $.Values.gpuProfiles $model.gpuProfile -}}
{{- $gpus := include "tideserve.ranks" $model | int -}}
{{- if not $profile }}
{{ $at }}.gpuProfile = {{ quote $model.gpuProfile }} is none of gpuProfiles: {{ keys $.Values.gpuProfiles | sortAlpha | join ", " }}
{{- else -}}
{{- $sizes := printf "%s.tensor_parallel_size = %d" $at (int (default 1 $model.tensor_parallel_size)) -}}
{{- with $model.pipeline_parallel_size }}{{- $sizes = printf "%s x pipeline_parallel_size = %d" $sizes (int .) -}}{{ end -}}
{{- if and (eq $profile.device "cpu") (gt $gpus 1) }}
{{ $sizes }} must be 1 on gpuProfile {{ quote $model.gpuProfile }}, which has no GPUs
{{- else if and (eq $profile.device "gpu") (gt $gpus (int $profile.gpusPerNode)) }}
{{ $sizes }} is above gpuProfiles.{{ $model.gpuProfile }}.gpusPerNode = {{ $profile.gpusPerNode }}: the GPUs of a replica are on one node
{{- end -}}
{{- if and (eq $profile.device "cpu") (regexMatch "^(fastsafetensors|instanttensor|runai_)" (default "" $model.load_format)) }}
{{ $at }}.load_format = {{ quote $model.load_format }} loads onto GPUs, and gpuProfile {{ quote $model.gpuProfile }} has none
{{- end -}}
{{- $cpus := float64 (default 1 $model.cpus_per_replica) -}}
{{- $pod := fromYaml (include "tideserve.podSize" (dict "profile" $profile "gpus" $gpus)) -}}
{{- if gt $cpus (float64 $pod.cpu) }}
{{ $at }}.cpus_per_replica = {{ $cpus }} is above the {{ $pod.cpu }} CPUs of its pod: raise those of gpuProfiles.{{ $model.gpuProfile }}
{{- end -}}
{{- end -}}
{{- range $index, $variant := default list $model.variants -}}
{{- if and $variant.gpuProfile (not (hasKey $.Values.gpuProfiles $variant.gpuProfile)) }}
{{ $at }}.variants[{{ $index }}].gpuProfile = {{ quote $variant.gpuProfile }} is none of gpuProfiles: {{ keys $.Values.gpuProfiles | sortAlpha | join ", " }}
{{- end -}}
{{- end -}}
{{- $knobs := default dict $model.autoscaling -}}
{{- $least := dig "min_replicas" 1 $knobs | int -}}
{{- $most := dig "max_replicas" 1 $knobs | int -}}
{{- if gt $least $most }}
{{ $at }}.autoscaling.min_replicas = {{ $least }} is above max_replicas = {{ $most }}
{{- end -}}
{{- range $index, $schedule := $knobs.schedules -}}
{{- if and (eq $schedule.start $schedule.end) $schedule.days (lt (len (uniq $schedule.days)) 7) }}
{{ $at }}.autoscaling.schedules[{{ $index }}].start = end = {{ quote $schedule.start }} means the whole day: list all seven days, or set a window
{{- end -}}
{{- if gt (int $schedule.min_replicas) $most }}
{{ $at }}.autoscaling.schedules[{{ $index }}].min_replicas = {{ $schedule.min_replicas }} is above max_replicas = {{ $most }}
{{- end -}}
{{- end -}}
{{- with dig "starting_values" "cold_start_s" list $knobs -}}
{{- if gt (first . | float64) (last . | float64) }}
{{ $at }}.autoscaling.starting_values.cold_start_s = {{ toJson . }}: the first must be at most the second
{{- end -}}
{{- end -}}
{{- $queue := default 8 $knobs.queue_target_per_replica | float64 -}}
{{- $ongoing := default 1000 $model.max_ongoing_requests | float64 -}}
{{- if gt $queue $ongoing }}
{{ $at }}.autoscaling.queue_target_per_replica = {{ $queue }} is above max_ongoing_requests = {{ $ongoing }}: a replica never queues so many, and its queue would never ask for another replica
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Worker groups, and whether their pods can hold the replicas that models may ask for. */}}
{{- define "tideserve.checks.groups" -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- if has $name (list "ingress" "headgroup") }}
gpuProfiles.{{ $name }} must have another name: {{ $name }} is the worker group of the {{ trimSuffix "group" $name }}
{{- end -}}
{{- if gt (int $profile.minWorkers) (int $profile.maxWorkers) }}
gpuProfiles.{{ $name }}.minWorkers = {{ $profile.minWorkers }} is above maxWorkers = {{ $profile.maxWorkers }}
{{- end -}}
{{- end -}}
{{- $profiles := dict -}}
{{- range $key, $model := .Values.models -}}
{{- $group := include "tideserve.groupOf" (dict "key" $key "model" $model) -}}
{{- if gt (len $group) 63 }}
models.{{ $key }} with its own modelCache has the worker group {{ quote $group }}, whose name has {{ len $group }} characters, and may have 63: shorten the key
{{- end -}}
{{- $of := ternary (printf "models.%s" $key) (printf "gpuProfiles.%s" $model.gpuProfile) (not (empty $model.modelCache)) -}}
{{- $other := get $profiles $group -}}
{{- if and $other (ne $other $of) }}
{{ $other }} and {{ $of }} would both have the worker group {{ quote $group }}, because -xN stands for N GPUs per replica, and -KEY for a model with its own modelCache: rename one
{{- end -}}
{{- $_ := set $profiles $group $of -}}
{{- end -}}
{{- range $its := fromYaml (include "tideserve.groups" .) -}}
{{- $profile := get $.Values.gpuProfiles $its.profile -}}
{{- $onCpus := eq $profile.device "cpu" -}}
{{- if and $its.gpus $profile.resourceClaimTemplate (semverCompare "<1.34.0-0" $.Capabilities.KubeVersion.Version) }}
gpuProfiles.{{ $its.profile }}.resourceClaimTemplate needs resource.k8s.io/v1, which Kubernetes has from 1.34. This is {{ $.Capabilities.KubeVersion.Version }}: set gpuResource alone, or give `helm template` the cluster's --kube-version
{{- end -}}
{{- $wanted := 0.0 -}}
{{- range $key := $its.models -}}
{{- $model := get $.Values.models $key -}}
{{- /* A variant without pods is dry, and the next one serves. */ -}}
{{- $replicas := ternary 0 (default dict $model.autoscaling | dig "max_replicas" 1) (not (empty $model.variants)) | float64 -}}
{{- $wanted = addf $wanted (mulf $replicas (ternary (dig "cpus_per_replica" 1 $model) 1 $onCpus | float64)) -}}
{{- end -}}
{{- $have := mulf $profile.maxWorkers (ternary (default dict $profile.perPod).cpu 1 $onCpus | float64) -}}
{{- if gt $wanted (addf $have 0.000001) }}
models {{ join ", " $its.models }} may want {{ $wanted }} {{ ternary "CPUs" "replicas" $onCpus }}, and gpuProfiles.{{ $its.profile }}.maxWorkers = {{ $profile.maxWorkers }} pods hold {{ $have }}: raise it, or lower autoscaling.max_replicas
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Databases, object stores and collectors that all pods share. No message repeats a URL, which may have a password. */}}
{{- define "tideserve.checks.stores" -}}
{{- $given := dict -}}
{{- $envs := dict "extraEnv" .Values.extraEnv "head.env" .Values.head.env "ingressWorkers.env" .Values.ingressWorkers.env -}}
{{- $engines := list -}}
{{- range fromYaml (include "tideserve.groups" .) -}}
{{- $engines = append $engines (printf "gpuProfiles.%s.env" .profile) -}}
{{- $_ := set $envs (last $engines) (get $.Values.gpuProfiles .profile).env -}}
{{- end -}}
{{- range $place, $env := $envs -}}
{{- range $env -}}
{{- $_ := set $given .name (append (get $given .name | default list) $place) -}}
{{- if and (has .name (list "TIDESERVE_LEDGER_URL" "TIDESERVE_BATCH_DATABASE_URL")) (regexMatch "^[a-z]+://[^/@]*:[^/@$][^/@]*@" (default "" .value)) }}
{{ $place }} sets {{ .name }} with a password in plain text, which everybody reads who may read the release: use valueFrom.secretKeyRef
{{- end -}}
{{- end -}}
{{- end -}}
{{/* Engines write the ledger, and the head's batch runner works on batches. The ingress reads both. */}}
{{- $ledger := list "app.ledger" "url" "TIDESERVE_LEDGER_URL" (append $engines "ingressWorkers.env" | uniq) -}}
{{- $batch := list "app.batch" "database" "TIDESERVE_BATCH_DATABASE_URL" (list "head.env" "ingressWorkers.env") -}}
{{- range $store := list $ledger $batch -}}
{{- $section := get $.Values.app (first $store | trimPrefix "app.") -}}
{{- $key := index $store 1 -}}
{{- $variable := index $store 2 -}}
{{- $url := default "" (get $section $key) -}}
{{- $places := get $given $variable | default list -}}
{{- $lacking := list -}}
{{- range last $store }}{{ if not (has . $places) }}{{ $lacking = append $lacking . }}{{ end }}{{ end -}}
{{- if and $section.enabled (hasPrefix "sqlite:" $url) }}
{{ first $store }}.{{ $key }} must not be a file of SQLite, which only processes of one node may share; name a Postgres that all pods reach
{{- else if and $section.enabled (not $url) (not $.Values.extraEnvFrom) (not (has "extraEnv" $places)) $lacking }}
{{ first $store }}.{{ $key }} is required with {{ first $store }}.enabled, or {{ $variable }} under extraEnv with a secretKeyRef{{ if $places }} (it is in {{ join " and " $places }}, not in {{ join " and " $lacking }}){{ end }}: without a Postgres each pod would have an SQLite of its own
{{- end -}}
{{- if regexMatch "^[a-z]+://[^/@]*:[^/@]+@|[?&]password=" $url }}
{{ first $store }}.{{ $key }} has a password in plain text, which everybody reads who may read the release: set {{ $variable }} under extraEnv, with a secretKeyRef
{{- end -}}
{{- end -}}
{{- $files := default "" .Values.app.batch.files -}}
{{- $mounted := not (hasPrefix "file:" $files) -}}
{{- range .Values.extraVolumeMounts }}{{- $mounted = or $mounted (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" (trimPrefix "file://" $files))) }}{{ end -}}
{{- if and .Values.app.batch.enabled (not $files) }}
app.batch.files is required with app.batch.enabled: an object store that all pods reach, such as s3://bucket/folder
{{- else if and .Values.app.batch.enabled (not $mounted) }}
app.batch.files = {{ quote $files }} is in no path of extraVolumeMounts: each pod would have files of its own; name an object store, or mount a shared volume there
{{- end -}}
{{- $traces := dig "traces" dict (default dict .Values.app.telemetry) -}}
{{- if and $traces.enabled (not $traces.endpoint) (not .Values.extraEnvFrom) (not (get $given "OTEL_EXPORTER_OTLP_ENDPOINT")) (not (get $given "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) }}
app.telemetry.traces.endpoint is required with app.telemetry.traces.enabled, such as http://tempo.observability:4317: without it, each pod would send its traces to itself
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.ingress" -}}
{{- $app := .Values.app.ingress -}}
{{- $knobs := default dict $app.autoscaling -}}
{{- $least := int $knobs.min_replicas -}}
{{- $most := dig "max_replicas" 4 $knobs | int -}}
{{- if gt $least $most }}
app.ingress.autoscaling.min_replicas = {{ $least }} is above max_replicas = {{ $most }}
{{- end -}}
{{- $http := default dict .Values.app.http -}}
{{- $body := default 8388608 $http.max_body_bytes | float64 -}}
{{- $bodies := default 536870912 $http.max_body_memory_bytes | float64 -}}
{{- if gt (mulf 2 $body) $bodies }}
app.http.max_body_bytes = {{ int64 $body }} must be at most half of max_body_memory_bytes = {{ int64 $bodies }}: the requests of one model may take half of it
{{- end -}}
{{- $streams := dig "target_ongoing_requests" 200 $knobs | float64 -}}
{{- $ongoing := default 10000 $app.max_ongoing_requests | float64 -}}
{{- if gt $streams $ongoing }}
app.ingress.autoscaling.target_ongoing_requests = {{ $streams }} is above app.ingress.max_ongoing_requests = {{ $ongoing }}: no replica would reach it, and the ingress would never scale
{{- end -}}
{{- $workers := .Values.ingressWorkers -}}
{{- if gt (int $workers.minWorkers) (int $workers.maxWorkers) }}
ingressWorkers.minWorkers = {{ $workers.minWorkers }} is above maxWorkers = {{ $workers.maxWorkers }}
{{- end -}}
{{- $cpus := include "tideserve.number" $workers.resources.requests.cpu | float64 -}}
{{- $each := dig "cpus_per_replica" 0.5 $app | float64 -}}
{{- $held := mul (divf $cpus (maxf $each 0.001) | floor | int) (int $workers.maxWorkers) -}}
{{- if gt $each $cpus }}
app.ingress.cpus_per_replica = {{ $each }} is above ingressWorkers.resources.requests.cpu = {{ $workers.resources.requests.cpu }}: no pod holds a replica
{{- else if and (gt $each 0.0) (gt $most (int $held)) }}
app.ingress.autoscaling.max_replicas = {{ $most }} is above the {{ $held }} replicas that ingressWorkers.maxWorkers = {{ $workers.maxWorkers }} pods of {{ $workers.resources.requests.cpu }} CPUs hold
{{- end -}}
{{- end -}}

{{/* Streams end before the pods that carry them. */}}
{{- define "tideserve.checks.drain" -}}
{{- $drain := .Values.app.drain_timeout_s -}}
{{- range $key, $model := .Values.models -}}
{{- if gt (float64 (default 0 $model.drain_timeout_s)) (float64 $drain) }}
models.{{ $key }}.drain_timeout_s = {{ $model.drain_timeout_s }} is above app.drain_timeout_s = {{ $drain }}, which decides how long pods live on: raise that one
{{- end -}}
{{- end -}}
{{- $needed := int (include "tideserve.leastGracePeriod" .) -}}
{{- $given := int (include "tideserve.gracePeriod" .) -}}
{{- if lt $given $needed }}
terminationGracePeriodSeconds = {{ $given }} is below the {{ $needed }} that preStopSeconds, app.drain_timeout_s = {{ $drain }} and 30 s to end need: streams would be cut; leave it null
{{- end -}}
{{- $notice := add (include "tideserve.headNotice" . | int) (include "tideserve.headEnd" . | int) | int -}}
{{- $head := int .Values.head.terminationGracePeriodSeconds -}}
{{- if lt $head $notice }}
head.terminationGracePeriodSeconds = {{ $head }} is below the {{ $notice }} that preStopSeconds = {{ .Values.preStopSeconds }} and 20 s to end need: the head would be gone before workers have said that they drain
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.cache" -}}
{{- range $key, $cache := fromYaml (include "tideserve.caches" .) -}}
{{- if and (eq $cache.type "pvc") (ne $cache.pvc.accessMode "ReadWriteMany") -}}
{{- $pods := 0 -}}
{{- range $group := fromYaml (include "tideserve.groups" $) -}}
{{- $pods = add $pods (ternary (int (get $.Values.gpuProfiles $group.profile).maxWorkers) 0 (eq $group.cache $key)) -}}
{{- end -}}
{{- if and $cache.preDownload.enabled (fromYamlArray (include "tideserve.downloads" (dict "root" $ "profile" "" "cache" $key))) -}}
{{- $pods = add $pods 1 -}}
{{- end -}}
{{- if and (not $key) $.Values.tests.gpuProof.enabled $.Values.tests.gpuProof.model -}}
{{- $pods = add $pods 1 -}}
{{- end -}}
{{- if gt (int $pods) 1 }}
{{ $cache.at }}.pvc.accessMode = {{ $cache.pvc.accessMode }} lets one node mount the claim, and {{ $pods }} pods may want it (the maxWorkers of the worker groups, one for modelCache.preDownload, and one for tests.gpuProof.model): use ReadWriteMany, or {{ $cache.at }}.type hostPath
{{- end -}}
{{- end -}}
{{- range list "/tmp" "/home/tideserve" "/dev/shm" "/etc/tideserve" -}}
{{- if and (ne $cache.type "none") (hasPrefix (printf "%s/" .) (printf "%s/" $cache.mountPath)) }}
{{ $cache.at }}.mountPath = {{ quote $cache.mountPath }} must not be in {{ . }}, which is the path of another volume
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.network" -}}
{{- $upgrade := .Values.upgradeStrategy -}}
{{- if gt (int $upgrade.stepSizePercent) (int $upgrade.maxSurgePercent) }}
upgradeStrategy.stepSizePercent = {{ $upgrade.stepSizePercent }} is above maxSurgePercent = {{ $upgrade.maxSurgePercent }}: the operator refuses it
{{- end -}}
{{- range $route := list "ingress" "gateway" -}}
{{- if and (eq $.Values.upgradeStrategy.type "NewClusterWithIncrementalUpgrade") (get $.Values $route).enabled }}
{{ $route }}.enabled = true must be false with upgradeStrategy.type = NewClusterWithIncrementalUpgrade: it routes to the Service, which stays on the old cluster while that cluster loses its capacity; clients go to the operator's own Gateway
{{- end -}}
{{- end -}}
{{- $hosts := .Values.ingress.hosts -}}
{{- range $index, $tls := .Values.ingress.tls -}}
{{- range $host := $tls.hosts -}}
{{- if and $hosts (not (has $host $hosts)) }}
ingress.tls[{{ $index }}].hosts has {{ quote $host }}, which is none of ingress.hosts: {{ join ", " $hosts }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.rights" -}}
{{- $account := .Values.serviceAccount -}}
{{- if and $account.create (eq $account.name (include "tideserve.workerServiceAccountName" .)) }}
serviceAccount.name = {{ quote $account.name }} is the name of the workers' account, which has no rights: choose another
{{- end -}}
{{- if and (not $account.create) (eq $account.name "default") }}
serviceAccount.name = "default" must be another with create = false: every pod of the namespace would have the head's rights
{{- end -}}
{{- $class := .Values.engineWorkers.priorityClassName -}}
{{- if and .Values.priorityClass.create (not $class) }}
engineWorkers.priorityClassName is empty with priorityClass.create = true: it is the name of the class, and without it no pod uses it
{{- else if and .Values.priorityClass.create (hasPrefix "system-" $class) }}
engineWorkers.priorityClassName = {{ quote $class }} must not begin with system- where priorityClass.create = true: Kubernetes keeps such names
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.tests" -}}
{{- with .Values.tests.gpuProof -}}
{{- if and .gpuProfile (not (hasKey $.Values.gpuProfiles .gpuProfile)) }}
tests.gpuProof.gpuProfile = {{ quote .gpuProfile }} is none of gpuProfiles: {{ keys $.Values.gpuProfiles | sortAlpha | join ", " }}
{{- end -}}
{{- if and .enabled $.Values.image.digest (not .image.tag) (not .image.digest) }}
tests.gpuProof.image.digest is required with tests.gpuProof.enabled and image.digest, or tests.gpuProof.image.tag: it is another image, of target proof
{{- end -}}
{{- end -}}
{{- $tasks := dict -}}
{{- range $key, $model := .Values.models -}}
{{- $_ := set $tasks (default $key $model.name) (default "generate" $model.task) -}}
{{- end -}}
{{- with .Values.tests.model -}}
{{- if not (hasKey $tasks .) }}
tests.model = {{ quote . }} is none of the models: {{ keys $tasks | sortAlpha | join ", " }}
{{- else if ne (get $tasks .) "generate" }}
tests.model = {{ quote . }} has task = {{ get $tasks . }}: `helm test` asks for a completion
{{- end -}}
{{- end -}}
{{- end -}}
