{{/*
Named objects that the cluster does not have, one a line: pods that name them do not start. Helm asks the cluster only
at install and upgrade. A question that the user may not ask would fail the release. So the first question is for a
ConfigMap that every namespace has, and `rbac.nodeAwareness: false` leaves out objects that belong to no namespace.
*/}}
{{- define "tideserve.missing" -}}
{{- $namespace := .Release.Namespace -}}
{{- if lookup "v1" "ConfigMap" $namespace "kube-root-ca.crt" -}}
{{- $redis := .Values.gcsFaultTolerance -}}
{{- $secrets := list
      (list "apiKeys.existingSecret" .Values.apiKeys.existingSecret .Values.apiKeys.key)
      (list "rayAuth.existingSecret" .Values.rayAuth.existingSecret "auth_token")
      (list "huggingFaceToken.existingSecret" .Values.huggingFaceToken.existingSecret .Values.huggingFaceToken.key)
      (list "gcsFaultTolerance.existingSecret" (ternary $redis.existingSecret "" $redis.enabled) $redis.passwordKey) -}}
{{- range $index, $name := .Values.image.pullSecrets -}}
{{- $secrets = append $secrets (list (printf "image.pullSecrets[%d]" $index) $name "") -}}
{{- end -}}
{{- range $secret := $secrets -}}
{{- $at := index $secret 0 -}}
{{- $key := index $secret 2 -}}
{{- with index $secret 1 -}}
{{- $found := lookup "v1" "Secret" $namespace . -}}
{{- $data := default dict $found.data -}}
{{- if not $found }}
{{ $at }} = {{ quote . }}: namespace {{ $namespace }} has no such Secret
{{- else if and $key (not (hasKey $data $key)) }}
{{ $at }} = {{ quote . }}: that Secret has no key {{ quote $key }}; it has {{ keys $data | sortAlpha | join ", " }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $cache := .Values.modelCache -}}
{{- $claimed := eq $cache.type "pvc" -}}
{{- with ternary $cache.pvc.existingClaim "" $claimed -}}
{{- if not (lookup "v1" "PersistentVolumeClaim" $namespace .) }}
modelCache.pvc.existingClaim = {{ quote . }}: namespace {{ $namespace }} has no such claim
{{- end -}}
{{- end -}}
{{- $storage := ternary $cache.pvc.storageClassName "" (and $claimed (not $cache.pvc.existingClaim)) -}}
{{- $classes := list
      (list "scheduling.k8s.io/v1" "PriorityClass" "head.priorityClassName" .Values.head.priorityClassName)
      (list "scheduling.k8s.io/v1" "PriorityClass" "ingressWorkers.priorityClassName" .Values.ingressWorkers.priorityClassName)
      (list "scheduling.k8s.io/v1" "PriorityClass" "engineWorkers.priorityClassName" (ternary "" .Values.engineWorkers.priorityClassName .Values.priorityClass.create))
      (list "storage.k8s.io/v1" "StorageClass" "modelCache.pvc.storageClassName" $storage)
      (list "networking.k8s.io/v1" "IngressClass" "ingress.className" (ternary .Values.ingress.className "" .Values.ingress.enabled)) -}}
{{- range $group := fromYaml (include "tideserve.groups" .) -}}
{{- $classes = append $classes (list "node.k8s.io/v1" "RuntimeClass" (printf "gpuProfiles.%s.runtimeClassName" $group.profile) (get $.Values.gpuProfiles $group.profile).runtimeClassName) -}}
{{- end -}}
{{- range $class := ternary (uniq $classes) list .Values.rbac.nodeAwareness -}}
{{- $kind := index $class 1 -}}
{{- with index $class 3 -}}
{{- if not (lookup (index $class 0) $kind "" .) }}
{{ index $class 2 }} = {{ quote . }}: the cluster has no such {{ $kind }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
