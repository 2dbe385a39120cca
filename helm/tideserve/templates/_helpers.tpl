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

{{- define "tideserve.labels" -}}
app.kubernetes.io/name: {{ include "tideserve.name" . | quote }}
{{ include "tideserve.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tideserve.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tideserve.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
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

{{- define "tideserve.modelCacheClaim" -}}
{{- default (printf "%s-models" (include "tideserve.fullname" .)) .Values.modelCache.pvc.existingClaim -}}
{{- end -}}

{{/*
Volumes of a pod. Weights go to engines only, clients' keys to the ingress only. Arguments: root, component, shm
(size of /dev/shm).
*/}}
{{- define "tideserve.volumes" -}}
{{- $values := .root.Values -}}
- name: tmp
  emptyDir: {sizeLimit: {{ $values.tmpSizeLimit }}}
- name: home
  emptyDir: {sizeLimit: {{ $values.homeSizeLimit }}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .shm }}}
{{- if eq .component "engine" }}
{{- with include "tideserve.modelVolume" .root }}
{{ . }}
{{- end }}
{{- end }}
{{- if and (eq .component "ingress") $values.apiKeys.existingSecret }}
- name: api-keys
  secret:
    secretName: {{ $values.apiKeys.existingSecret | quote }}
    defaultMode: 0440
    items: [{key: {{ $values.apiKeys.key | quote }}, path: api-keys}]
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volume of the model cache, or nothing. */}}
{{- define "tideserve.modelVolume" -}}
{{- if eq .Values.modelCache.type "pvc" -}}
- name: models
  persistentVolumeClaim: {claimName: {{ include "tideserve.modelCacheClaim" . | quote }}}
{{- else if eq .Values.modelCache.type "hostPath" -}}
- name: models
  hostPath: {path: {{ .Values.modelCache.hostPath.path | quote }}, type: DirectoryOrCreate}
{{- end -}}
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "tideserve.volumeMounts" -}}
{{- $values := .root.Values -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/tideserve}
- {name: shm, mountPath: /dev/shm}
{{- if and (eq .component "engine") (ne $values.modelCache.type "none") }}
- {name: models, mountPath: {{ $values.modelCache.mountPath | quote }}}
{{- end }}
{{- if and (eq .component "ingress") $values.apiKeys.existingSecret }}
- {name: api-keys, mountPath: /etc/tideserve/secrets, readOnly: true}
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* HF_HOME and the token: what loads weights. */}}
{{- define "tideserve.modelEnv" -}}
{{- if ne .Values.modelCache.type "none" }}
- {name: HF_HOME, value: {{ .Values.modelCache.mountPath | quote }}}
{{- end }}
{{- with .Values.huggingFaceToken }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
{{- end -}}
