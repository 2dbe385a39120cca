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
