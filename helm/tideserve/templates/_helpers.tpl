{{/* Names, labels and the image: what every object of the chart shares. */}}

{{- define "tideserve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 47 | trimSuffix "-" -}}
{{- end -}}

{{/* Never cut short: a name over 47 characters is refused by the checks, with a sentence. */}}
{{- define "tideserve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.serveService" -}}
{{- printf "%s-serve-svc" (include "tideserve.fullname" .) -}}
{{- end -}}

{{/*
What selects the release's pods. In pod templates too, where a change would start a new cluster: so no versions. Not
`app.kubernetes.io/name`: KubeRay has its own there, by which the head's Service finds its pod.
*/}}
{{- define "tideserve.selectorLabels" -}}
app.kubernetes.io/part-of: {{ include "tideserve.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/*
Metadata of an object. Arguments: root, name; component, labels, annotations and clusterWide where they apply. The
chart's own labels win, because selectors depend on them.
*/}}
{{- define "tideserve.metadata" -}}
{{- $root := .root -}}
{{- $labels := dict
      "app.kubernetes.io/name" (include "tideserve.name" $root)
      "app.kubernetes.io/version" $root.Chart.AppVersion
      "app.kubernetes.io/managed-by" $root.Release.Service
      "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- with .component }}{{- $_ := set $labels "app.kubernetes.io/component" . }}{{- end -}}
{{- $ours := fromYaml (include "tideserve.selectorLabels" $root) -}}
name: {{ .name | quote }}
{{- if not .clusterWide }}
namespace: {{ $root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- merge $labels $ours (default dict .labels) (default dict $root.Values.commonLabels) | toYaml | nindent 2 }}
{{- with merge dict (default dict .annotations) (default dict $root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tideserve.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The head talks to the API server: KubeRay's autoscaler and the node awareness run there. */}}
{{- define "tideserve.headServiceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- printf "%s-head" (include "tideserve.fullname" .) -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* Workers talk to nobody but each other and the model hub: an account without rights, and no token. */}}
{{- define "tideserve.workerServiceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- printf "%s-worker" (include "tideserve.fullname" .) -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.uninstallServiceAccountName" -}}
{{- printf "%s-uninstall" (include "tideserve.fullname" .) -}}
{{- end -}}

{{/* A Role and its binding. Arguments: root, name, rules, account, annotations. */}}
{{- define "tideserve.role" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "tideserve.metadata" . | nindent 2 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "tideserve.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{/* The RayService as it is in the cluster, before Helm writes it: nothing where there is none. */}}
{{- define "tideserve.live" -}}
{{- if .Capabilities.APIVersions.Has "ray.io/v1/RayService" -}}
{{- lookup "ray.io/v1" "RayService" .Release.Namespace (include "tideserve.fullname" .) | toYaml -}}
{{- end -}}
{{- end -}}

{{/* The RayService as owner, once there is one: with it, the objects of `helm test` go. */}}
{{- define "tideserve.owner" -}}
{{- with fromYaml (include "tideserve.live" .) -}}
ownerReferences:
  - {apiVersion: ray.io/v1, kind: RayService, name: {{ .metadata.name | quote }}, uid: {{ .metadata.uid | quote }}}
{{- end -}}
{{- end -}}

{{/* Seconds that Redis has to be cleared, from the removal of the RayCluster: the head ends first. */}}
{{- define "tideserve.cleanupSeconds" -}}
{{- add (int .Values.head.terminationGracePeriodSeconds) 240 -}}
{{- end -}}

{{/*
The model caches: under the key of each model that has its own, and under "" the cache of all other models. `at` is the key
of its values. A model's own cache has no claim of yours unless the model names one.
*/}}
{{- define "tideserve.caches" -}}
{{- $shared := deepCopy .Values.modelCache -}}
{{- $claim := printf "%s-models" (include "tideserve.fullname" .) -}}
{{- $caches := dict "" (merge (dict "at" "modelCache" "claim" (default $claim $shared.pvc.existingClaim)) $shared) -}}
{{- range $key, $model := .Values.models -}}
{{- if $model.modelCache -}}
{{- $own := mergeOverwrite (deepCopy $shared) (dict "pvc" (dict "existingClaim" "")) (deepCopy $model.modelCache) -}}
{{- $names := dict "at" (printf "models.%s.modelCache" $key) "claim" (default (printf "%s-%s" $claim $key) $own.pvc.existingClaim) -}}
{{- $_ := set $caches $key (merge $names $own) -}}
{{- end -}}
{{- end -}}
{{- toYaml $caches -}}
{{- end -}}

{{/* Name of the Secret with the file of API keys; empty without keys. */}}
{{- define "tideserve.apiKeysSecret" -}}
{{- if .Values.apiKeys.entries }}{{ include "tideserve.ownKeysSecret" . }}{{ else }}{{ .Values.apiKeys.existingSecret }}{{ end }}
{{- end -}}

{{- define "tideserve.ownKeysSecret" -}}
{{- printf "%s-api-keys" (include "tideserve.fullname" .) -}}
{{- end -}}

{{/*
A hash of all that makes a new cluster if it changes: not the numbers of pods. Arguments: root, and groups, to leave out the
worker groups after so many: the operator adds those at the end of the list to the running cluster.
*/}}
{{- define "tideserve.podsHash" -}}
{{- $cluster := include "tideserve.rayCluster" .root | fromYaml -}}
{{- $groups := $cluster.workerGroupSpecs -}}
{{- $_ := set $cluster "workerGroupSpecs" (slice $groups 0 (min (len $groups) (default (len $groups) .groups))) -}}
{{- regexReplaceAll "\"(min|max)?[rR]eplicas\":[0-9]+" (toJson $cluster) "" | sha256sum | trunc 16 -}}
{{- end -}}

{{/* Objects that must be there before the release, as `kind/name` of kubectl, one a line. */}}
{{- define "tideserve.required" -}}
{{- $values := .Values -}}
{{- $classes := list $values.head.priorityClassName $values.ingressWorkers.priorityClassName (ternary "" $values.engineWorkers.priorityClassName $values.priorityClass.create) -}}
{{- $secrets := concat (default list $values.image.pullSecrets) (list $values.apiKeys.existingSecret $values.tests.apiKeySecret $values.rayAuth.existingSecret $values.rayTls.caSecret $values.huggingFaceToken.existingSecret (ternary $values.gcsFaultTolerance.existingSecret "" $values.gcsFaultTolerance.enabled)) -}}
{{- $maps := list -}}
{{- $claims := list -}}
{{- $storage := list -}}
{{- range fromYaml (include "tideserve.caches" .) -}}
{{- $claims = append $claims (ternary .pvc.existingClaim "" (eq .type "pvc")) -}}
{{- $storage = append $storage (ternary .pvc.storageClassName "" (and (eq .type "pvc") (not .pvc.existingClaim))) -}}
{{- end -}}
{{- range default list $values.extraVolumes -}}
{{- $secrets = append $secrets (dig "secret" "secretName" "" .) -}}
{{- $maps = append $maps (dig "configMap" "name" "" .) -}}
{{- $claims = append $claims (dig "persistentVolumeClaim" "claimName" "" .) -}}
{{- end -}}
{{- $sources := concat (default list $values.extraEnvFrom) (default list $values.extraEnv) (default list $values.head.env) (default list $values.ingressWorkers.env) -}}
{{- $runtimes := list -}}
{{- $claimTemplates := list -}}
{{- range fromYaml (include "tideserve.groups" .) -}}
{{- $profile := get $values.gpuProfiles .profile -}}
{{- $sources = concat $sources (default list $profile.env) -}}
{{- $runtimes = append $runtimes $profile.runtimeClassName -}}
{{- $classes = append $classes (ternary "" $profile.priorityClassName (and $values.priorityClass.create (eq (default "" $profile.priorityClassName) $values.engineWorkers.priorityClassName))) -}}
{{- $claimTemplates = append $claimTemplates $profile.resourceClaimTemplate -}}
{{- end -}}
{{- range $sources -}}
{{- $secrets = concat $secrets (list (dig "secretRef" "name" "" .) (dig "valueFrom" "secretKeyRef" "name" "" .)) -}}
{{- $maps = concat $maps (list (dig "configMapRef" "name" "" .) (dig "valueFrom" "configMapKeyRef" "name" "" .)) -}}
{{- end -}}
{{- $kinds := dict "secret" $secrets "configmap" $maps "persistentvolumeclaim" $claims "priorityclass" $classes "resourceclaimtemplate" $claimTemplates "runtimeclass" $runtimes "storageclass" $storage
      "serviceaccount" (list (ternary "" $values.serviceAccount.name $values.serviceAccount.create))
      "ingressclass" (list (ternary $values.ingress.className "" $values.ingress.enabled)) -}}
{{- range $kind := keys $kinds | sortAlpha -}}
{{- range get $kinds $kind | compact | uniq | sortAlpha }}
{{ $kind }}/{{ . }}
{{- end -}}
{{- end -}}
{{- end -}}
