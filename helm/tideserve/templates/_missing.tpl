{{/*
Named objects that the cluster does not have, as a YAML list of sentences: pods that name them do not start. Helm asks
the cluster at install and upgrade only, and a question that may not be asked would fail the release: so it begins with a
ConfigMap that every namespace has, and `rbac.nodeAwareness: false` leaves out what belongs to no namespace.
*/}}
{{- define "tideserve.missing" -}}
{{- $missing := list -}}
{{- $namespace := .Release.Namespace -}}
{{- if lookup "v1" "ConfigMap" $namespace "kube-root-ca.crt" -}}
{{- $secrets := list
      (list "apiKeys.existingSecret" .Values.apiKeys.existingSecret .Values.apiKeys.key)
      (list "rayAuth.existingSecret" .Values.rayAuth.existingSecret "auth_token")
      (list "huggingFaceToken.existingSecret" .Values.huggingFaceToken.existingSecret .Values.huggingFaceToken.key) -}}
{{- with .Values.gcsFaultTolerance -}}
{{- if and .enabled .existingSecret -}}
{{- $secrets = append $secrets (list "gcsFaultTolerance.existingSecret" .existingSecret .passwordKey) -}}
{{- end -}}
{{- end -}}
{{- range $index, $name := default list .Values.image.pullSecrets -}}
{{- $secrets = append $secrets (list (printf "image.pullSecrets[%d]" $index) $name "") -}}
{{- end -}}
{{- range $secret := $secrets -}}
{{- $name := index $secret 1 -}}
{{- $key := index $secret 2 -}}
{{- if $name -}}
{{- $found := lookup "v1" "Secret" $namespace $name -}}
{{- if not $found -}}
{{- $missing = append $missing (printf "%s = %q: namespace %s has no such Secret" (index $secret 0) $name $namespace) -}}
{{- else if and $key (not (hasKey (default dict $found.data) $key)) -}}
{{- $missing = append $missing (printf "%s = %q: that Secret has no key %q; it has %s" (index $secret 0) $name $key (keys (default dict $found.data) | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.modelCache -}}
{{- if and (eq .type "pvc") .pvc.existingClaim -}}
{{- if not (lookup "v1" "PersistentVolumeClaim" $namespace .pvc.existingClaim) -}}
{{- $missing = append $missing (printf "modelCache.pvc.existingClaim = %q: namespace %s has no such claim" .pvc.existingClaim $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.rbac.nodeAwareness -}}
{{- $classes := list -}}
{{- range $place := list "head" "ingressWorkers" "engineWorkers" -}}
{{- if not (and (eq $place "engineWorkers") $.Values.priorityClass.create) -}}
{{- $classes = append $classes (list "scheduling.k8s.io/v1" "PriorityClass" (printf "%s.priorityClassName" $place) (get $.Values $place).priorityClassName) -}}
{{- end -}}
{{- end -}}
{{- range $group := fromYaml (include "tideserve.groups" .) -}}
{{- $profile := get $.Values.gpuProfiles $group.profile -}}
{{- $classes = append $classes (list "node.k8s.io/v1" "RuntimeClass" (printf "gpuProfiles.%s.runtimeClassName" $group.profile) $profile.runtimeClassName) -}}
{{- end -}}
{{- with .Values.modelCache -}}
{{- if and (eq .type "pvc") (not .pvc.existingClaim) -}}
{{- $classes = append $classes (list "storage.k8s.io/v1" "StorageClass" "modelCache.pvc.storageClassName" .pvc.storageClassName) -}}
{{- end -}}
{{- end -}}
{{- if .Values.ingress.enabled -}}
{{- $classes = append $classes (list "networking.k8s.io/v1" "IngressClass" "ingress.className" .Values.ingress.className) -}}
{{- end -}}
{{- range $class := $classes | uniq -}}
{{- $name := index $class 3 -}}
{{- if $name -}}
{{- if not (lookup (index $class 0) (index $class 1) "" $name) -}}
{{- $missing = append $missing (printf "%s = %q: the cluster has no such %s" (index $class 2) $name (index $class 1)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $missing -}}
{{- end -}}
