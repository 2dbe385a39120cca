{{/*
A Job that loads models into the cache, or nothing if there is nothing to load. Not a hook: hundreds of gigabytes outlast
Helm's timeout, and replicas need not wait for it. A Job cannot be changed, so the name carries a hash of its contents:
a different Job finds loaded what the last Job loaded.
Arguments: root, key and cache (of tideserve.caches), profile (of the GPU nodes; empty for any), place (nodeSelector, tolerations,
nodeAffinity), pods.
*/}}
{{- define "tideserve.downloadJob" -}}
{{- $root := .root -}}
{{- $cache := .cache -}}
{{- with fromYamlArray (include "tideserve.downloads" (dict "root" $root "profile" .profile "cache" .key)) -}}
{{- $name := list (include "tideserve.fullname" $root) "load" $.profile $.key | compact | join "-" | trunc 54 | trimSuffix "-" -}}
{{- $labels := merge (dict "app.kubernetes.io/component" "download") (fromYaml (include "tideserve.selectorLabels" $root)) -}}
{{- $apart := dict "requiredDuringSchedulingIgnoredDuringExecution" (list (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels))) -}}
{{- /* Each pod fills the folder of another node. */ -}}
{{- $affinity := merge (dict "podAntiAffinity" $apart) (pick $.place "nodeAffinity") -}}
{{- $place := merge (dict "affinity" (ternary $affinity dict (eq $cache.type "hostPath"))) (omit $.place "nodeAffinity") -}}
{{- /* Exit status 2 is what no retry mends: a gated model, a revision that is not there, no room. */ -}}
{{- $rules := list
      (dict "action" "FailJob" "onExitCodes" (dict "containerName" "download" "operator" "In" "values" (list 2)))
      (dict "action" "Ignore" "onPodConditions" (list (dict "type" "DisruptionTarget" "status" "True"))) -}}
{{- /* A day to read its log. Without the Job, the next upgrade looks again, in seconds if all is there. */ -}}
{{- $job := dict "parallelism" (int $.pods) "completions" (int $.pods) "backoffLimit" (int $cache.preDownload.backoffLimit)
      "activeDeadlineSeconds" (int $cache.preDownload.activeDeadlineSeconds) "ttlSecondsAfterFinished" 86400 "podFailurePolicy" (dict "rules" $rules) -}}
{{- $env := concat (list (dict "name" "PYTHONUNBUFFERED" "value" "1") (dict "name" "HF_HUB_DISABLE_TELEMETRY" "value" "1")) (fromYamlArray (include "tideserve.modelEnv" $)) -}}
{{- $spec := include "tideserve.jobSpec" (dict "root" $root "component" "download" "cache" $cache "name" "download" "command" (list "python" "-m" "serve_app.weights.download") "args" . "env" $env "resources" $cache.preDownload.resources "place" $place "job" $job) }}
---
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "tideserve.metadata" (dict "root" $root "name" (printf "%s-%s" $name (print $.profile $.key $spec | sha256sum | trunc 8)) "component" "download") | nindent 2 }}
spec:
  {{- $spec | nindent 2 }}
{{ end -}}
{{- end -}}
