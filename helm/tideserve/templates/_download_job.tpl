{{/*
A Job that loads models into the cache, or nothing if there is nothing to load. Not a hook: hundreds of gigabytes outlast
Helm's timeout, and replicas need not wait for it. A Job cannot be changed, so the name carries a hash of all that is in
it: what differs is another Job, which finds loaded what the last one loaded.
Arguments: root, profile (of the GPU nodes; empty for any), place (nodeSelector, tolerations, nodeAffinity), pods.
*/}}
{{- define "tideserve.downloadJob" -}}
{{- $downloads := include "tideserve.downloads" (dict "root" .root "profile" .profile) -}}
{{- if fromYamlArray $downloads -}}
{{- $job := printf "%s-load%s" (include "tideserve.fullname" .root) (ternary (printf "-%s" .profile) "" (ne .profile "")) | trunc 54 | trimSuffix "-" -}}
{{- $spec := include "tideserve.downloadJobSpec" (merge (dict "downloads" $downloads) .) }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $job }}-{{ print .profile $spec | sha256sum | trunc 8 }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "tideserve.labels" .root | nindent 4 }}
    app.kubernetes.io/component: download
spec:
  {{- $spec | nindent 2 }}
{{ end -}}
{{- end -}}

{{- define "tideserve.downloadJobSpec" -}}
{{- $values := .root.Values -}}
{{- $cache := $values.modelCache -}}
parallelism: {{ int .pods }}
completions: {{ int .pods }}
backoffLimit: {{ int $cache.preDownload.backoffLimit }}
activeDeadlineSeconds: {{ int $cache.preDownload.activeDeadlineSeconds }}
# A day to read its log. Without the Job, the next upgrade looks again, in seconds if all is there.
ttlSecondsAfterFinished: 86400
podFailurePolicy:
  rules:
    # Exit status 2 is what no retry mends: a gated model, a revision that is not there, no room.
    - action: FailJob
      onExitCodes: {containerName: download, operator: In, values: [2]}
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
template:
  metadata:
    labels:
      {{- include "tideserve.selectorLabels" .root | nindent 6 }}
      app.kubernetes.io/component: download
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "tideserve.workerServiceAccountName" .root | quote }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    {{- with include "tideserve.imagePullSecrets" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with .place.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .place.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if eq $cache.type "hostPath" }}
    affinity:
      {{- with .place.nodeAffinity }}
      nodeAffinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # Each pod fills the folder of another node.
      podAntiAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "tideserve.selectorLabels" .root | nindent 16 }}
                app.kubernetes.io/component: download
    {{- end }}
    securityContext:
      {{- toYaml $values.podSecurityContext | nindent 6 }}
    containers:
      - name: download
        image: {{ include "tideserve.image" .root | quote }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [python, -m, serve_app.weights.download]
        args:
          {{- .downloads | nindent 10 }}
        env:
          - {name: PYTHONUNBUFFERED, value: "1"}
          - {name: HF_HUB_DISABLE_TELEMETRY, value: "1"}
          {{- include "tideserve.modelEnv" .root | trim | nindent 10 }}
          {{- with $values.extraEnv }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        resources:
          {{- toYaml $cache.preDownload.resources | nindent 10 }}
        securityContext:
          {{- toYaml $values.securityContext | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
          - {name: home, mountPath: /home/tideserve}
          - {name: models, mountPath: {{ $cache.mountPath | quote }}}
          {{- with $values.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
      - {name: home, emptyDir: {sizeLimit: 1Gi}}
      {{- include "tideserve.modelVolume" .root | nindent 6 }}
      {{- with $values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}
