{{/* What the pods of the release have in common. */}}

{{/* Seconds from the removal of a pod to its end: until Services have dropped it, the longest stream, and a margin. */}}
{{- define "tideserve.gracePeriod" -}}
{{- $needed := include "tideserve.leastGracePeriod" . | int -}}
{{- default $needed .Values.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{- define "tideserve.leastGracePeriod" -}}
{{- add (int .Values.preStopSeconds) (ceil .Values.app.drain_timeout_s | int) 30 -}}
{{- end -}}

{{/* Until workers that are told to stop together with the head have said so: their preStopSeconds, and a margin. */}}
{{- define "tideserve.headNotice" -}}
{{- add (int .Values.preStopSeconds) 5 -}}
{{- end -}}

{{/* The head needs these of its seconds to end after its wait for the workers. */}}
{{- define "tideserve.headEnd" -}}15{{- end -}}

{{/*
What a container does before SIGTERM reaches it. A worker waits until Services have dropped it. The head waits for the
workers that stop too: without it they cannot say that they drain. A worker with a `notice` announces its end. Arguments: root,
component, notice.
*/}}
{{- define "tideserve.preStop" -}}
{{- $values := .root.Values -}}
{{- if eq .component "head" -}}
{{- $wait := sub (int $values.head.terminationGracePeriodSeconds) (include "tideserve.headEnd" .root | int) -}}
[python, -m, serve_app.cluster.head_pod_shutdown, --address, "127.0.0.1:6379", --notice, {{ include "tideserve.headNotice" .root | quote }}, --timeout, {{ $wait | quote }}]
{{- else if .notice -}}
[python, -m, serve_app.cluster.node_end, --in, {{ .notice | int | quote }}, --wait]
{{- else -}}
[/bin/sh, -c, sleep {{ int $values.preStopSeconds }}]
{{- end -}}
{{- end -}}

{{/* The longest time a stream may still need a pod or a proxy that is on its way out. */}}
{{- define "tideserve.drainSeconds" -}}
{{- ceil .Values.app.drain_timeout_s | int -}}
{{- end -}}

{{/* Tokens do not pass through Ray's object store. By default it takes 30 % of a pod's memory, more than /dev/shm has. */}}
{{- define "tideserve.objectStoreBytes" -}}
{{- mul 512 1024 1024 -}}
{{- end -}}

{{/*
Environment variables from several lists, as a YAML list. The last value of a name counts: the API server refuses a
name that a container has twice. Arguments: the lists.
*/}}
{{- define "tideserve.mergedEnv" -}}
{{- $last := dict -}}
{{- $names := list -}}
{{- range . -}}
{{- range . -}}
{{- $names = append $names .name -}}
{{- $_ := set $last .name . -}}
{{- end -}}
{{- end -}}
{{- $merged := list -}}
{{- range uniq $names }}{{- $merged = append $merged (get $last .) }}{{- end -}}
{{- toYaml $merged -}}
{{- end -}}

{{/*
Ray's flags for a pod: files/ray-flags.yaml, which is serve_app/env.py, and those that follow from the drain time. Ray
reads its flags when its processes start, so every pod has them all. Not RAY_AUTH_MODE: the operator sets it together
with the token. Arguments: root, component.
*/}}
{{- define "tideserve.rayEnv" -}}
{{- $root := .root -}}
{{- $flags := $root.Files.Get "files/ray-flags.yaml" | fromYaml -}}
{{- $drain := include "tideserve.drainSeconds" $root | int -}}
{{- $env := $flags.always -}}
{{- if $root.Values.fastDataPath -}}
{{- $env = merge (dict "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" (max 3600 (include "tideserve.gracePeriod" $root | int))) $flags.fast $env -}}
{{- end -}}
{{- if eq .component "head" -}}
{{- /* Ray Serve's controller is on the head: it would never be idle, and the wait never end before its time. */ -}}
{{- $env = merge (dict "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" 0) $env -}}
{{- else -}}
{{- /* A worker ends with its streams this long after it has lost the GCS, 60 s by default. It may lose it for good when
the whole cluster is removed, and until a new head has come. */ -}}
{{- $env = merge (dict "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" $drain "RAY_gcs_rpc_server_reconnect_timeout_s" (max 600 $drain)) $env -}}
{{- end -}}
{{- range $name, $value := $env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end -}}
{{- end -}}

{{/* HF_HOME and the token: what loads weights. Arguments: root, cache. */}}
{{- define "tideserve.modelEnv" -}}
{{- if ne .cache.type "none" }}
- {name: HF_HOME, value: {{ .cache.mountPath | quote }}}
{{- end }}
{{- with .root.Values.huggingFaceToken }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
{{- end -}}

{{/*
`volumes` of a pod and `mounts` of its container. Arguments: root, component, and where they apply shm (size of /dev/shm),
cache (one of tideserve.caches), keys (does it mount them?), results (of the GPU proof).
*/}}
{{- define "tideserve.storage" -}}
{{- $values := .root.Values -}}
{{- $temporary := dict "emptyDir" (dict "sizeLimit" $values.tmpSizeLimit) -}}
{{- $all := list (list "tmp" "/tmp" $temporary) (list "home" "/home/tideserve" (dict "emptyDir" (dict "sizeLimit" $values.homeSizeLimit))) -}}
{{- if has .component (list "head" "ingress" "engine") -}}
{{- /* The operator would make the head's, without a limit. Workers have it too, for sidecars that read Ray's logs. */ -}}
{{- $all = append $all (list "ray-logs" "/tmp/ray" $temporary) -}}
{{- end -}}
{{- with .shm }}{{- $all = append $all (list "shm" "/dev/shm" (dict "emptyDir" (dict "medium" "Memory" "sizeLimit" .))) }}{{- end -}}
{{- with .cache -}}
{{- $source := ternary (dict "persistentVolumeClaim" (dict "claimName" .claim)) (dict "hostPath" (dict "path" .hostPath.path "type" "DirectoryOrCreate")) (eq .type "pvc") -}}
{{- if ne .type "none" }}{{- $all = append $all (list "models" .mountPath $source) }}{{- end -}}
{{- end -}}
{{- if and $values.rayTls.caSecret (has .component (list "head" "ingress" "engine")) -}}
{{- $all = append $all (list "ray-tls" "/etc/tideserve/tls" (dict "emptyDir" (dict "medium" "Memory" "sizeLimit" "1Mi"))) -}}
{{- end -}}
{{- if .results }}{{- $all = append $all (list "proof-results" "/results" (dict "emptyDir" (dict "sizeLimit" "1Gi"))) }}{{- end -}}
{{- if or .keys (eq .component "ingress") -}}
{{- /* Also without keys: as an optional volume that is there already, they come and go without other pods. */ -}}
{{- $keys := dict "secretName" (default (include "tideserve.ownKeysSecret" .root) (include "tideserve.apiKeysSecret" .root)) "optional" true "defaultMode" 288 "items" (list (dict "key" $values.apiKeys.key "path" "api-keys")) -}}
{{- $all = append $all (list "api-keys" "/etc/tideserve/secrets" (dict "secret" $keys)) -}}
{{- end -}}
{{- $volumes := list -}}
{{- $mounts := list -}}
{{- range $all -}}
{{- $volumes = append $volumes (merge (dict "name" (index . 0)) (index . 2)) -}}
{{- $mounts = append $mounts (merge (dict "name" (index . 0) "mountPath" (index . 1)) (ternary (dict "readOnly" true) dict (has (index . 0) (list "api-keys" "ray-tls")))) -}}
{{- end -}}
{{- if and $values.rayTls.caSecret (has .component (list "head" "ingress" "engine")) -}}
{{- $volumes = append $volumes (dict "name" "ray-ca" "secret" (dict "secretName" $values.rayTls.caSecret "defaultMode" 288)) -}}
{{- end -}}
{{- dict "volumes" (concat $volumes (default list $values.extraVolumes)) "mounts" (concat $mounts (default list $values.extraVolumeMounts)) | toYaml -}}
{{- end -}}

{{/* Where Ray and the data plane find the pod's certificate, if it is made in the pod. */}}
{{- define "tideserve.tlsEnv" -}}
{{- if .Values.rayTls.caSecret }}
- {name: RAY_USE_TLS, value: "1"}
- {name: RAY_TLS_SERVER_CERT, value: /etc/tideserve/tls/tls.crt}
- {name: RAY_TLS_SERVER_KEY, value: /etc/tideserve/tls/tls.key}
- {name: RAY_TLS_CA_CERT, value: /etc/tideserve/tls/ca.crt}
{{- end }}
{{- end -}}

{{/*
The init container that makes the pod's certificate. It alone mounts the authority's key. The operator sets FQ_RAY_IP, the
name of the head's Service, by which workers reach the head. Arguments: root, component.
*/}}
{{- define "tideserve.certificate" -}}
{{- if .root.Values.rayTls.caSecret }}
- name: certificate
  image: {{ include "tideserve.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [python, -m, serve_app.cluster.pod_certificate, --ca, /etc/tideserve/ca, --out, /etc/tideserve/tls, --addresses, $(POD_IPS){{ if eq .component "head" }}, --name, $(FQ_RAY_IP){{ end }}]
  env:
    - {name: POD_IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
  resources:
    {{- $size := dict "cpu" "250m" "memory" "256Mi" }}
    {{- dict "requests" $size "limits" $size | toYaml | nindent 4 }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: ray-ca, mountPath: /etc/tideserve/ca, readOnly: true}
    - {name: ray-tls, mountPath: /etc/tideserve/tls}
{{- end }}
{{- end -}}

{{/* The Ray container of a pod. Arguments: root, component, name, resources, shm, cache, ports, env (more variables). */}}
{{- define "tideserve.container" -}}
{{- $values := .root.Values -}}
{{- $model := list -}}
{{- with .cache -}}
{{- $model = fromYamlArray (include "tideserve.modelEnv" $) -}}
{{- if and .compiled (ne .type "none") -}}
{{- $model = append $model (dict "name" "TIDESERVE_COMPILE_CACHE" "value" (printf "%s/.compiled" (trimSuffix "/" .mountPath))) -}}
{{- end -}}
{{- end -}}
- name: {{ .name }}
  image: {{ include "tideserve.image" .root | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  env:
    {{- include "tideserve.mergedEnv" (list (fromYamlArray (include "tideserve.rayEnv" .)) (fromYamlArray (include "tideserve.tlsEnv" .root)) $model (default list $values.extraEnv) (default list .env)) | nindent 4 }}
  {{- with $values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- with .ports }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - {containerPort: 8000, name: serve}
    - {containerPort: 8080, name: metrics}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- toYaml $values.securityContext | nindent 4 }}
  lifecycle:
    preStop:
      exec: {command: {{ include "tideserve.preStop" . }}}
  volumeMounts:
    {{- (fromYaml (include "tideserve.storage" .)).mounts | toYaml | nindent 4 }}
{{- end -}}

{{/*
A pod template. Arguments: root, component, container (rendered), place (nodeSelector, tolerations, affinity,
priorityClassName, runtimeClassName, topologySpreadConstraints, podLabels, podAnnotations), more (other fields of the pod),
and those of tideserve.storage.
*/}}
{{- define "tideserve.podTemplate" -}}
{{- $values := .root.Values -}}
{{- $ofRay := has .component (list "head" "ingress" "engine") -}}
{{- $asks := has .component (list "head" "uninstall") -}}
{{- $seconds := ternary (include "tideserve.gracePeriod" .root | int) 30 $ofRay -}}
{{- $more := merge (pick .place "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "topologySpreadConstraints") (default dict .more) (dict "schedulerName" $values.schedulerName) -}}
metadata:
  labels:
    {{- include "tideserve.selectorLabels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with merge dict (default dict .place.podLabels) (default dict $values.podLabels) (default dict $values.commonLabels) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with merge dict (default dict .place.podAnnotations) (default dict $values.podAnnotations) (default dict $values.commonAnnotations) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include (ternary (printf "tideserve.%sServiceAccountName" .component) "tideserve.workerServiceAccountName" $asks) .root | quote }}
  automountServiceAccountToken: {{ $asks }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ ternary (int $values.head.terminationGracePeriodSeconds) $seconds (eq .component "head") }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- range $name, $value := $more }}
  {{- if $value }}
  {{- dict $name $value | toYaml | nindent 2 }}
  {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with ternary (concat (fromYamlArray (include "tideserve.certificate" .)) (default list $values.extraInitContainers)) list $ofRay }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    {{- .container | nindent 4 }}
    {{- with ternary $values.extraContainers nil $ofRay }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- (fromYaml (include "tideserve.storage" .)).volumes | toYaml | nindent 4 }}
{{- end -}}

{{/*
`spec` of a Job whose pods run one command and end. Arguments: those of a pod template, and name, image, command, args, env,
resources, job (more fields of the Job).
*/}}
{{- define "tideserve.jobSpec" -}}
{{- $values := .root.Values -}}
{{- $storage := fromYaml (include "tideserve.storage" .) -}}
{{- $env := fromYamlArray (include "tideserve.mergedEnv" (list (default list .env) (default list $values.extraEnv))) -}}
{{- $container := dict "name" .name "image" (default (include "tideserve.image" .root) .image) "imagePullPolicy" $values.image.pullPolicy
      "command" .command "args" .args "env" $env "envFrom" (default list $values.extraEnvFrom) "resources" .resources
      "securityContext" (default dict $values.securityContext) "terminationMessagePolicy" "FallbackToLogsOnError" "volumeMounts" $storage.mounts -}}
{{- $pod := merge (dict "container" (list $container | toYaml) "more" (merge (dict "restartPolicy" "Never") (default dict .more))) . -}}
{{- merge .job (dict "template" (fromYaml (include "tideserve.podTemplate" $pod))) | toYaml -}}
{{- end -}}
