{{/* Rules of a pod that the API server or KubeRay 1.7 enforces, where they concern several values. */}}
{{- define "tideserve.checks.pods" -}}
{{- $places := dict "extraEnv" .Values.extraEnv "head.env" .Values.head.env "ingressWorkers.env" .Values.ingressWorkers.env -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- $_ := set $places (printf "gpuProfiles.%s.env" $name) $profile.env -}}
{{- $at := printf "gpuProfiles.%s.%s" $name (ternary "perGpu" "perPod" (eq $profile.device "gpu")) -}}
{{- $size := default $profile.perPod $profile.perGpu -}}
{{- if ge (include "tideserve.number" $size.shm | float64) (include "tideserve.number" $size.memory | float64) }}
{{ $at }}.shm = {{ $size.shm }} must be below {{ $at }}.memory = {{ $size.memory }}: shared memory counts as memory
{{- end -}}
{{- end -}}
{{- range $key, $model := .Values.models -}}
{{- $names := list -}}
{{- range $name, $_ := $model.env }}{{- $names = append $names (dict "name" $name) }}{{- end -}}
{{- $_ := set $places (printf "models.%s.env" $key) $names -}}
{{- end -}}
{{- range $place := keys $places | sortAlpha -}}
{{- include "tideserve.checks.env" (dict "at" $place "env" (get $places $place)) -}}
{{- end -}}
{{- $resources := dict "head" .Values.head.resources "ingressWorkers" .Values.ingressWorkers.resources "autoscaler" .Values.autoscaler.resources -}}
{{- range fromYaml (include "tideserve.caches" .) }}{{- $_ := set $resources (printf "%s.preDownload" .at) .preDownload.resources }}{{- end -}}
{{- range $place := list "extraInitContainers" "extraContainers" -}}
{{- range $index, $container := get $.Values $place }}{{- $_ := set $resources (printf "%s[%d]" $place $index) (default dict $container.resources) }}{{- end -}}
{{- end -}}
{{- range $place, $its := $resources -}}
{{- $limits := default dict (default dict $its).limits -}}
{{- range $name, $asked := default dict (default dict $its).requests -}}
{{- $limit := get $limits $name -}}
{{- if and (hasKey $limits $name) (gt (include "tideserve.number" $asked | float64) (include "tideserve.number" $limit | float64)) }}
{{ $place }}.resources.requests.{{ $name }} = {{ $asked }} is above {{ $place }}.resources.limits.{{ $name }} = {{ $limit }}: a request must be at most the limit
{{- end -}}
{{- end -}}
{{- range $what := list "limits" "requests" -}}
{{- $memory := dig $what "memory" "" (default dict $its) -}}
{{- if and $memory (has $place (list "head" "ingressWorkers")) (le (include "tideserve.number" $memory | float64) 1073741824.0) }}
{{ $place }}.resources.{{ $what }}.memory = {{ $memory }} must be above the 1Gi of the pod's shared memory, which counts as memory
{{- end -}}
{{- end -}}
{{- end -}}
{{- $labels := dict "podLabels" .Values.podLabels "commonLabels" .Values.commonLabels -}}
{{- range list "head" "ingressWorkers" "engineWorkers" }}{{- $_ := set $labels (printf "%s.podLabels" .) (get $.Values .).podLabels }}{{- end -}}
{{- range $place, $given := $labels -}}
{{- range $label, $_ := $given -}}
{{- if regexMatch "^(ray\\.io/.*|tideserve/budget|app\\.kubernetes\\.io/(name|part-of|instance|component|created-by|managed-by|version)|helm\\.sh/chart)$" $label }}
{{ $place }} sets {{ $label }}, which it must not: Services, budgets and the network policy find pods by it
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tideserve.checks.volumes" . -}}
{{- $pod := default dict .Values.podSecurityContext -}}
{{- $own := default dict .Values.securityContext -}}
{{- $user := dig "runAsUser" (dig "runAsUser" "" $pod) $own | toString -}}
{{- if and (eq $user "0") (dig "runAsNonRoot" (dig "runAsNonRoot" false $pod) $own) }}
{{ ternary "securityContext" "podSecurityContext" (hasKey $own "runAsUser") }}.runAsUser = 0 is root, and runAsNonRoot = true forbids it: the image's user is 1000
{{- end -}}
{{- end -}}

{{/* A quantity as a number. */}}
{{- define "tideserve.number" -}}
{{- $factors := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $suffix := regexFind "[A-Za-z]*$" (toString .) -}}
{{- $factor := ternary (get $factors $suffix) 1.0 (hasKey $factors $suffix) -}}
{{- printf "%f" (mulf (regexFind "^[0-9.]*" (toString .) | float64) $factor) -}}
{{- end -}}

{{/* Arguments: at, env. */}}
{{- define "tideserve.checks.env" -}}
{{- $owned := dict
      "RAY_enable_autoscaler_v2" "the chart sets autoscalerOptions.version, and the operator refuses both"
      "RAY_REDIS_ADDRESS" "set gcsFaultTolerance.redisAddress"
      "REDIS_PASSWORD" "set gcsFaultTolerance.existingSecret"
      "REDIS_USERNAME" "set gcsFaultTolerance.usernameKey"
      "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" "it follows from app.drain_timeout_s"
      "RAY_gcs_rpc_server_reconnect_timeout_s" "it follows from app.drain_timeout_s"
      "RAY_SERVE_ENABLE_HA_PROXY" "set fastDataPath"
      "RAY_SERVE_HAPROXY_BINARY_PATH" "it is a program of the image"
      "RAY_USE_TLS" "set rayTls.enabled"
      "RAY_TLS_SERVER_CERT" "set rayTls.caSecret"
      "RAY_TLS_SERVER_KEY" "set rayTls.caSecret"
      "RAY_TLS_CA_CERT" "set rayTls.caSecret"
      "RAY_AUTH_MODE" "the operator sets it, and the token of rayAuth.existingSecret"
      "RAY_AUTH_TOKEN" "set rayAuth.existingSecret"
      "RAY_AUTH_TOKEN_PATH" "set rayAuth.existingSecret"
      "PATH" "the programs of the image are found by it"
      "HF_TOKEN" "set huggingFaceToken.existingSecret"
      "HF_HOME" "set modelCache.mountPath" -}}
{{- $seen := dict -}}
{{- range $index, $variable := .env -}}
{{- $name := $variable.name -}}
{{- with get $owned $name }}
{{ $.at }} sets {{ $name }}, which it must not: {{ . }}
{{- end -}}
{{- if hasKey $seen $name }}
{{ $.at }}[{{ $index }}].name = {{ quote $name }} is that of {{ $.at }}[{{ get $seen $name }}] too: only the last would count
{{- end -}}
{{- $_ := set $seen $name $index -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.volumes" -}}
{{- $names := list "tmp" "home" -}}
{{- range $index, $volume := .Values.extraVolumes -}}
{{- if has $volume.name (list "tmp" "home" "shm" "models" "api-keys" "ray-logs" "ray-tls" "ray-ca" "proof-results") }}
extraVolumes[{{ $index }}].name = {{ quote $volume.name }} must be another: the chart has a volume of that name
{{- else if has $volume.name $names }}
extraVolumes[{{ $index }}].name = {{ quote $volume.name }} is the name of two volumes
{{- end -}}
{{- $names = append $names $volume.name -}}
{{- end -}}
{{- $paths := dict "/tmp" "the chart's tmp" "/home/tideserve" "the chart's home" "/dev/shm" "the chart's shm" "/tmp/ray" "the chart's ray-logs" "/etc/tideserve/secrets" "the chart's api-keys" "/etc/tideserve/tls" "the chart's ray-tls" -}}
{{- range fromYaml (include "tideserve.caches" .) -}}
{{- if ne .type "none" }}{{- $_ := set $paths (trimSuffix "/" .mountPath) .at }}{{- end -}}
{{- end -}}
{{- $caches := fromYaml (include "tideserve.caches" .) -}}
{{- $pods := dict "headgroup" (dict "root" . "component" "head" "shm" "1Gi") "ingress" (dict "root" . "component" "ingress" "shm" "1Gi") -}}
{{- range $name, $group := fromYaml (include "tideserve.groups" .) -}}
{{- $_ := set $pods $name (dict "root" $ "component" "engine" "shm" "1Gi" "cache" (get $caches $group.cache)) -}}
{{- end -}}
{{- range $name, $pod := $pods -}}
{{- $volumes := list -}}
{{- range (fromYaml (include "tideserve.storage" $pod)).volumes }}{{- $volumes = append $volumes .name }}{{- end -}}
{{- $_ := set $pods $name $volumes -}}
{{- end -}}
{{- $containers := list "ray-head" "ray-worker" "autoscaler" "wait-gcs-ready" "certificate" -}}
{{- range $place := list "extraInitContainers" "extraContainers" -}}
{{- range $index, $container := get $.Values $place -}}
{{- if has $container.name $containers }}
{{ $place }}[{{ $index }}].name = {{ quote $container.name }} must be another: it is the name of a container of the chart or the operator, or of one above
{{- end -}}
{{- $containers = append $containers $container.name -}}
{{- range $number, $mount := $container.volumeMounts -}}
{{- range $name, $volumes := $pods -}}
{{- if not (has $mount.name $volumes) }}
{{ $place }}[{{ $index }}].volumeMounts[{{ $number }}].name = {{ quote $mount.name }} is no volume of the group {{ $name }}, whose pods get the container too. They have {{ sortAlpha $volumes | join ", " }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $placed := dict "ingressWorkers" .Values.ingressWorkers "engineWorkers" .Values.engineWorkers -}}
{{- range $name, $profile := .Values.gpuProfiles }}{{- $_ := set $placed (printf "gpuProfiles.%s" $name) $profile }}{{- end -}}
{{- range $place, $pods := $placed -}}
{{- $spread := list -}}
{{- range $index, $its := $pods.topologySpreadConstraints -}}
{{- $pair := printf "%s %s" $its.topologyKey $its.whenUnsatisfiable -}}
{{- if has $pair $spread }}
{{ $place }}.topologySpreadConstraints[{{ $index }}] has the topologyKey and whenUnsatisfiable of another, which Kubernetes refuses
{{- end -}}
{{- $spread = append $spread $pair -}}
{{- end -}}
{{- end -}}
{{- range $index, $mount := .Values.extraVolumeMounts -}}
{{- $at := printf "extraVolumeMounts[%d]" $index -}}
{{- $mounted := printf "%s/" (trimSuffix "/" $mount.mountPath) -}}
{{- if or (hasPrefix "/opt/tideserve/" $mounted) (hasPrefix $mounted "/opt/tideserve/") }}
{{ $at }}.mountPath = {{ quote $mount.mountPath }} would hide the programs of the image, in /opt/tideserve
{{- end -}}
{{- if not (has $mount.name $names) }}
{{ $at }}.name = {{ quote $mount.name }} is no volume of every pod: {{ join ", " $names }}
{{- end -}}
{{- $path := trimSuffix "/" $mount.mountPath -}}
{{- with get $paths $path }}
{{ $at }}.mountPath = {{ quote $mount.mountPath }} is where {{ . }} is mounted already
{{- end -}}
{{- $_ := set $paths $path $at -}}
{{- end -}}
{{- end -}}
