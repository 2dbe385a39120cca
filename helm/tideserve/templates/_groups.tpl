{{/*
The worker groups of the engines, as YAML: by name, `profile`, `gpus` of a pod (0 on CPU), the keys of their `models`, and the key of
their `cache`. A model with a cache of its own has a group of its own, because each pod of a group may get each of its models.
A replica of N GPUs wants them on one node, so a pod of its group asks for exactly N: the scheduler never breaks up
a node that a replica needs whole.
*/}}
{{- define "tideserve.groups" -}}
{{- $groups := dict -}}
{{- range $key, $whole := .Values.models -}}
{{- range $model := fromYamlArray (include "tideserve.engines" $whole) -}}
{{- $profile := get $.Values.gpuProfiles (default "" $model.gpuProfile) -}}
{{- if $profile -}}
{{- $name := include "tideserve.groupOf" (dict "key" $key "model" $model) -}}
{{- $gpus := ternary 0 (include "tideserve.ranks" $model | int) (eq $profile.device "cpu") -}}
{{- $others := dig $name "models" (list) $groups -}}
{{- $_ := set $groups $name (dict "profile" $model.gpuProfile "gpus" $gpus "models" (append $others $key | uniq) "cache" (ternary $key "" (not (empty $model.modelCache)))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{/*
A model as a list of its variants, each with the settings of the model that it does not override. A variant with
`share` is a new version, beside which the model's own replicas run.
*/}}
{{- define "tideserve.engines" -}}
{{- $engines := list -}}
{{- $model := . -}}
{{- $own := true -}}
{{- range $variant := default list .variants -}}
{{- if not (hasKey $variant "share") }}{{ $own = false }}{{ end -}}
{{- $engines = append $engines (mergeOverwrite (deepCopy (omit $model "variants")) (deepCopy $variant)) -}}
{{- end -}}
{{- if $own }}{{ $engines = append $engines (omit $model "variants") }}{{ end -}}
{{- toYaml $engines -}}
{{- end -}}

{{/* vLLM's workers of one replica of a model: one per GPU. */}}
{{- define "tideserve.ranks" -}}
{{- mul (default 1 .tensor_parallel_size) (default 1 .pipeline_parallel_size) -}}
{{- end -}}

{{/* The worker group of a model. Arguments: key, model. */}}
{{- define "tideserve.groupOf" -}}
{{- $gpus := include "tideserve.ranks" .model | int -}}
{{- default "" .model.gpuProfile -}}
{{- if gt $gpus 1 }}{{ printf "-x%d" $gpus }}{{ end -}}
{{- if .model.modelCache }}{{ printf "-%s" .key }}{{ end -}}
{{- end -}}

{{/*
The custom resource that ties replicas to their worker group: without it an ingress replica, or one of a smaller
model, might settle on a pod whose GPUs another replica waits for. Not to end in `gpu`, which KubeRay takes for GPUs.
*/}}
{{- define "tideserve.slots" -}}
{{- printf "%s:replicas" . -}}
{{- end -}}

{{/* For each worker group with a disruption budget, the pods that drains leave it. */}}
{{- define "tideserve.budgets" -}}
{{- $budgets := dict -}}
{{- $keep := int .Values.podDisruptionBudget.minAvailable -}}
{{- $always := dict "ingress" (int .Values.ingressWorkers.minWorkers) -}}
{{- range $name, $group := fromYaml (include "tideserve.groups" .) -}}
{{- $_ := set $always $name (int (get $.Values.gpuProfiles $group.profile).minWorkers) -}}
{{- end -}}
{{- range $name, $pods := $always -}}
{{- if and $.Values.podDisruptionBudget.enabled (gt $pods $keep) }}{{- $_ := set $budgets $name $keep }}{{- end -}}
{{- end -}}
{{- toYaml $budgets -}}
{{- end -}}

{{- define "tideserve.budgetLabel" -}}
{{- with get .budgets .group -}}
tideserve/budget: {{ . | int | quote }}
{{- end -}}
{{- end -}}

{{/* How the ingress's pods spread: as it is given, or over nodes as far as there are any, each cluster of an upgrade for itself. */}}
{{- define "tideserve.ingressSpread" -}}
{{- $given := .Values.ingressWorkers.topologySpreadConstraints -}}
{{- if kindIs "invalid" $given -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  matchLabelKeys: [ray.io/cluster]
  labelSelector:
    matchLabels:
      {{- include "tideserve.selectorLabels" . | nindent 6 }}
      app.kubernetes.io/component: ingress
{{- else -}}
{{- toYaml $given -}}
{{- end -}}
{{- end -}}

{{/* N times a quantity. Arguments: a list of the quantity, such as 100Gi, and N. */}}
{{- define "tideserve.times" -}}
{{- $quantity := toString (index . 0) -}}
{{- printf "%d%s" (mul (regexFind "^[0-9]+" $quantity) (index . 1)) (regexFind "[A-Za-z]*$" $quantity) -}}
{{- end -}}

{{/* What a pod of a group asks for, as `cpu`, `memory` and `shm`. Arguments: profile, gpus. */}}
{{- define "tideserve.podSize" -}}
{{- if eq .profile.device "cpu" -}}
{{- toYaml .profile.perPod -}}
{{- else -}}
{{- $gpus := .gpus -}}
{{- range $resource, $quantity := .profile.perGpu }}
{{ $resource }}: {{ include "tideserve.times" (list $quantity $gpus) | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Devices of a pod: `resources` of its container, and `claims` of the pod, if a claim stands for each GPU. Arguments: profile, gpus. */}}
{{- define "tideserve.devices" -}}
{{- $asked := pick (fromYaml (include "tideserve.podSize" .)) "cpu" "memory" -}}
{{- $claims := list -}}
{{- $names := list -}}
{{- if .profile.resourceClaimTemplate -}}
{{- range $index := until (int .gpus) -}}
{{- $names = append $names (dict "name" (printf "gpu-%d" $index)) -}}
{{- $claims = append $claims (dict "name" (printf "gpu-%d" $index) "resourceClaimTemplateName" $.profile.resourceClaimTemplate) -}}
{{- end -}}
{{- else if .gpus }}{{- $_ := set $asked .profile.gpuResource (.gpus | int | toString) }}{{- end -}}
{{- $resources := dict "requests" $asked "limits" $asked -}}
{{- if $names }}{{- $_ := set $resources "claims" $names }}{{- end -}}
{{- dict "resources" $resources "claims" $claims | toYaml -}}
{{- end -}}
