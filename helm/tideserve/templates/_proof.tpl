{{/* The pod of `helm test` that measures a GPU: what tests/test-gpu-proof.yaml is made of. */}}

{{/* Its GPU profile: the one that is given, or that of the first model on a GPU, or of the first model. */}}
{{- define "tideserve.proofProfile" -}}
{{- $found := .Values.tests.gpuProof.gpuProfile -}}
{{- range $device := list "gpu" "cpu" -}}
{{- range $key := keys (default dict $.Values.models) | sortAlpha -}}
{{- $name := default "" (get $.Values.models $key).gpuProfile -}}
{{- $profile := default dict (get $.Values.gpuProfiles $name) -}}
{{- if and (not $found) (eq (default "" $profile.device) $device) -}}
{{- $found = $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "tideserve.proofImage" -}}
{{- $own := .Values.tests.gpuProof.image -}}
{{- $tag := default (printf "%s-proof" (default .Chart.AppVersion .Values.image.tag)) $own.tag -}}
{{- $image := dict "repository" (default .Values.image.repository $own.repository) "tag" $tag "digest" $own.digest -}}
{{- include "tideserve.image" (dict "Chart" .Chart "Values" (dict "image" $image)) -}}
{{- end -}}

{{/* Seconds of its pod, of which a quarter of an hour may go by while the image is pulled. */}}
{{- define "tideserve.proofDeadline" -}}
{{- add (int .Values.tests.gpuProof.timeoutSeconds) 900 -}}
{{- end -}}

{{/* Arguments: root, component, resources, proof (the command), env. */}}
{{- define "tideserve.proofContainer" -}}
- name: gpu-proof
  image: {{ include "tideserve.proofImage" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  # Its status is that of the proof, and the last of its log is what was measured: the pod keeps no files.
  command: [/bin/sh, -c]
  args:
    - |
      timeout --foreground --kill-after=60 {{ int .root.Values.tests.gpuProof.timeoutSeconds }} "$@"
      status=$?
      [ "$status" = 0 ] || tail --lines=40 /results/servers/*.log
      [ ! -f /results/proof.json ] || cat /results/proof.json
      exit "$status"
    - sh
    {{- toYaml .proof | nindent 4 }}
  {{- with .env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: proof-results, mountPath: /results}
    {{- include "tideserve.volumeMounts" (dict "root" .root "component" .component) | nindent 4 }}
{{- end -}}
