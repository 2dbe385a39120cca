{{/* What the head and the workers have in common. */}}

{{/* Seconds from the removal of a pod to its end: until Services have dropped it, the longest stream, and a margin. */}}
{{- define "tideserve.gracePeriod" -}}
{{- $needed := include "tideserve.leastGracePeriod" . | int -}}
{{- default $needed .Values.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{/* The head serves no requests: it has seconds of its own, whatever streams need. */}}
{{- define "tideserve.headGracePeriod" -}}
{{- int .Values.head.terminationGracePeriodSeconds -}}
{{- end -}}

{{/* Until workers that are told to stop together with the head have said so: their preStopSeconds, and a margin. */}}
{{- define "tideserve.headNotice" -}}
{{- add (int .Values.preStopSeconds) 5 -}}
{{- end -}}

{{/* Of the head's seconds, those that it needs to end after its wait for the workers. */}}
{{- define "tideserve.headEnd" -}}15{{- end -}}

{{/*
What a container does before SIGTERM reaches it. A worker waits until Services have dropped it. The head waits for the
workers that stop too: without it they cannot say that they drain. Arguments: root, component.
*/}}
{{- define "tideserve.preStop" -}}
{{- $root := .root -}}
{{- if eq .component "head" -}}
{{- $wait := sub (include "tideserve.headGracePeriod" $root | int) (include "tideserve.headEnd" $root | int) -}}
[python, -m, serve_app.cluster.head_pod_shutdown, --address, "127.0.0.1:6379", --notice, {{ include "tideserve.headNotice" $root | quote }}, --timeout, {{ $wait | quote }}]
{{- else -}}
[/bin/sh, -c, sleep {{ int $root.Values.preStopSeconds }}]
{{- end -}}
{{- end -}}

{{- define "tideserve.leastGracePeriod" -}}
{{- add (int .Values.preStopSeconds) (ceil .Values.app.drain_timeout_s | int) 30 -}}
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
Ray reads its flags when its processes start, so every pod has them all: those of serve_app/env.py, which says why,
and those that follow from the drain time. Not RAY_AUTH_MODE: the operator sets it together with the token. Arguments:
root, component.
*/}}
{{- define "tideserve.rayEnv" -}}
{{- $root := .root -}}
{{- if $root.Values.fastDataPath }}
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}
- {name: RAY_SERVE_THROUGHPUT_OPTIMIZED, value: "1"}
- {name: RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE, value: "1"}
- {name: RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S, value: {{ max 3600 (include "tideserve.gracePeriod" $root | int) | quote }}}
- {name: RAY_SERVE_HAPROXY_METRICS_ENABLED, value: "0"}
- {name: RAY_SERVE_HAPROXY_BINARY_PATH, value: /opt/tideserve/bin/tideserve-front}
- {name: RAY_SERVE_HAPROXY_MAXCONN, value: "16384"}
- {name: RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S, value: "300"}
- {name: RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER, value: 1s}
- {name: RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S, value: "1"}
- {name: TIDESERVE_HEADER_TIMEOUT_S, value: "10"}
- {name: TIDESERVE_CONNECTIONS_PER_ADDRESS, value: "0"}
- {name: TIDESERVE_HAPROXY_ADMIN_HOST, value: 127.0.0.1}
{{- end }}
- {name: RAY_process_group_cleanup_enabled, value: "true"}
- {name: RAY_metrics_report_interval_ms, value: "1000"}
- {name: RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S, value: "1"}
- {name: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS, value: "1"}
- {name: RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S, value: "15"}
- {name: RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH, value: "serve_app.patches.ray:ask_gcs_seldom"}
- {name: RAY_SERVE_METRICS_EXPORT_INTERVAL_MS, value: "1000"}
- {name: REPORTER_UPDATE_INTERVAL_MS, value: "15000"}
- {name: METRICS_RECORD_INTERVAL_S, value: "15"}
- {name: RAY_LOG_MONITOR_MANY_FILES_THRESHOLD, value: "0"}
- {name: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH, value: "serve_app.api.ray_headers:middlewares"}
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_worker_maximum_startup_concurrency, value: "8"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: VLLM_NO_USAGE_STATS, value: "1"}
{{- if eq .component "head" }}
# Ray Serve's controller is on the head: it would never be idle, and the wait never end before its time.
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: "0"}
{{- else }}
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ include "tideserve.drainSeconds" $root | quote }}}
# A worker ends with what it streams this long after it has lost the GCS, 60 s by default. It may lose it for good when
# the whole cluster is removed, and until a new head has come.
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: {{ max 600 (include "tideserve.drainSeconds" $root | int) | quote }}}
{{- end }}
{{- end -}}

{{/* The Ray container of a pod. Arguments: root, component, name, resources, ports, env (more variables). */}}
{{- define "tideserve.container" -}}
{{- $root := .root -}}
- name: {{ .name }}
  image: {{ include "tideserve.image" $root | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  env:
    {{- include "tideserve.rayEnv" (dict "root" $root "component" .component) | trim | nindent 4 }}
    {{- if eq .component "engine" }}
    {{- with include "tideserve.modelEnv" $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $root.Values.modelCache }}
    {{- if and .compiled (ne .type "none") }}
    - {name: TIDESERVE_COMPILE_CACHE, value: {{ printf "%s/.compiled" (trimSuffix "/" .mountPath) | quote }}}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with concat (default list $root.Values.extraEnv) (default list .env) }}
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
    {{- toYaml $root.Values.securityContext | nindent 4 }}
  lifecycle:
    preStop:
      exec: {command: {{ include "tideserve.preStop" (dict "root" $root "component" .component) }}}
  volumeMounts:
    {{- include "tideserve.volumeMounts" (dict "root" $root "component" .component) | nindent 4 }}
{{- end -}}

{{/*
A pod template. Arguments: root, component, container (rendered), shm, serviceAccountName, token (mount it?), place
(nodeSelector, tolerations, affinity, priorityClassName, runtimeClassName, topologySpreadConstraints, podLabels,
podAnnotations).
*/}}
{{- define "tideserve.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "tideserve.selectorLabels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .place.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .place.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .serviceAccountName | quote }}
  automountServiceAccountToken: {{ .token }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include (ternary "tideserve.headGracePeriod" "tideserve.gracePeriod" (eq .component "head")) $root }}
  {{- with include "tideserve.imagePullSecrets" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .place.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .place.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .place.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .place.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .place.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .place.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  containers:
    {{- .container | nindent 4 }}
  volumes:
    {{- include "tideserve.volumes" (dict "root" $root "component" .component "shm" .shm) | nindent 4 }}
{{- end -}}
