{{/* What the objects around the RayService cannot work with, as a YAML list of sentences. */}}
{{- define "tideserve.checks.parts.problems" -}}
{{- concat
      (fromYamlArray (include "tideserve.checks.parts.cache" .))
      (fromYamlArray (include "tideserve.checks.parts.network" .))
      (fromYamlArray (include "tideserve.checks.parts.rights" .))
      (fromYamlArray (include "tideserve.checks.parts.tests" .)) | toYaml -}}
{{- end -}}

{{- define "tideserve.checks.parts.cache" -}}
{{- $problems := list -}}
{{- $cache := .Values.modelCache -}}
{{- if and (eq $cache.type "pvc") (ne $cache.pvc.accessMode "ReadWriteMany") -}}
{{- $pods := 0 -}}
{{- range $name, $group := fromYaml (include "tideserve.groups" .) -}}
{{- $profile := get $.Values.gpuProfiles (default "" $group.profile) | default dict -}}
{{- $pods = add $pods (int $profile.maxWorkers) -}}
{{- end -}}
{{- if and $cache.preDownload.enabled (fromYamlArray (include "tideserve.downloads" (dict "root" . "profile" ""))) -}}
{{- $pods = add $pods 1 -}}
{{- end -}}
{{- if and .Values.tests.gpuProof.enabled .Values.tests.gpuProof.model -}}
{{- $pods = add $pods 1 -}}
{{- end -}}
{{- if gt (int $pods) 1 -}}
{{- $problems = append $problems (printf "modelCache.pvc.accessMode = %s lets one node mount the claim, and %d pods may want it (the maxWorkers of the worker groups, one for modelCache.preDownload, and one for tests.gpuProof.model): use ReadWriteMany, or modelCache.type hostPath" $cache.pvc.accessMode (int $pods)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $cache.type "hostPath") (not (regexMatch "^/[^/]" $cache.hostPath.path)) -}}
{{- $problems = append $problems (printf "modelCache.hostPath.path = %q must be an absolute path below /" $cache.hostPath.path) -}}
{{- end -}}
{{- if ne $cache.type "none" -}}
{{- range list "/tmp" "/home/tideserve" "/dev/shm" "/etc/tideserve" -}}
{{- if or (eq . (trimSuffix "/" $cache.mountPath)) (hasPrefix (printf "%s/" .) $cache.mountPath) -}}
{{- $problems = append $problems (printf "modelCache.mountPath = %q must not be in %s, which is another volume's" $cache.mountPath .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.parts.network" -}}
{{- $problems := list -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- $problems = append $problems "gateway.parentRefs is empty with gateway.enabled = true: name at least one Gateway, or the route belongs to none" -}}
{{- end -}}
{{- if eq .Values.upgradeStrategy.type "NewClusterWithIncrementalUpgrade" -}}
{{- range $route := list "ingress" "gateway" -}}
{{- if (get $.Values $route).enabled -}}
{{- $problems = append $problems (printf "%s.enabled = true must be false with upgradeStrategy.type = NewClusterWithIncrementalUpgrade: it routes to the Service, which stays on the old cluster while that one's capacity is taken away; clients go to the operator's own Gateway" $route) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingress -}}
{{- if .hosts -}}
{{- $hosts := .hosts -}}
{{- range $index, $tls := default list .tls -}}
{{- range $host := default list $tls.hosts -}}
{{- if not (has $host $hosts) -}}
{{- $problems = append $problems (printf "ingress.tls[%d].hosts has %q, which is none of ingress.hosts: %s" $index $host (join ", " $hosts)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $who := list "clients" "monitoring" "operator" -}}
{{- range $index, $peer := default list (get $.Values.networkPolicy $who) -}}
{{- $at := printf "networkPolicy.%s[%d]" $who $index -}}
{{- if not $peer -}}
{{- $problems = append $problems (printf "%s is empty: it must have a podSelector, a namespaceSelector or an ipBlock ({namespaceSelector: {}} is everybody in the cluster)" $at) -}}
{{- else if and $peer.ipBlock (gt (len $peer) 1) -}}
{{- $problems = append $problems (printf "%s has ipBlock and selectors: it must have one or the other" $at) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $index, $object := default list .Values.extraObjects -}}
{{- if kindIs "map" $object -}}
{{- if not (and $object.apiVersion $object.kind (dig "metadata" "name" "" $object)) -}}
{{- $problems = append $problems (printf "extraObjects[%d] must have apiVersion, kind and metadata.name" $index) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.networkPolicy -}}
{{- if and .enabled (not .operator) -}}
{{- $problems = append $problems "networkPolicy.operator is empty with networkPolicy.enabled = true: name the KubeRay operator's pods, or it deploys nothing" -}}
{{- end -}}
{{- if and .enabled .egress.enabled (not .egress.to) -}}
{{- $problems = append $problems "networkPolicy.egress.to is empty with networkPolicy.egress.enabled = true: allow at least the API server, from which the head's autoscaler asks for pods" -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.parts.rights" -}}
{{- $problems := list -}}
{{- $account := .Values.serviceAccount -}}
{{- if and (not $account.create) (not $account.name) -}}
{{- $problems = append $problems "serviceAccount.name is empty with serviceAccount.create = false: the operator would let the account \"default\", and with it every pod of the namespace, change the RayCluster: name an account of the head's own" -}}
{{- end -}}
{{- if and $account.create (eq $account.name (include "tideserve.workerServiceAccountName" .)) -}}
{{- $problems = append $problems (printf "serviceAccount.name = %q is the name of the workers' account, which has no rights: choose another" $account.name) -}}
{{- end -}}
{{- if .Values.priorityClass.create -}}
{{- $name := .Values.engineWorkers.priorityClassName -}}
{{- if not $name -}}
{{- $problems = append $problems "engineWorkers.priorityClassName is empty with priorityClass.create = true: it is the name of the class, and without it no pod uses it" -}}
{{- else if hasPrefix "system-" $name -}}
{{- $problems = append $problems (printf "engineWorkers.priorityClassName = %q must not begin with system- where priorityClass.create = true: Kubernetes keeps such names" $name) -}}
{{- end -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (lt (int .maxUnavailable) 1) -}}
{{- $problems = append $problems (printf "podDisruptionBudget.maxUnavailable = %d must be at least 1: no node could ever be drained" (int .maxUnavailable)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.gcsFaultTolerance -}}
{{- if and .enabled (not .redisAddress) -}}
{{- $problems = append $problems "gcsFaultTolerance.redisAddress is empty with gcsFaultTolerance.enabled = true: name your Redis as host:port" -}}
{{- end -}}
{{- if and .enabled .usernameKey (not .existingSecret) -}}
{{- $problems = append $problems (printf "gcsFaultTolerance.usernameKey = %q is a key of gcsFaultTolerance.existingSecret, which is empty" .usernameKey) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.parts.tests" -}}
{{- $problems := list -}}
{{- with .Values.tests.gpuProof -}}
{{- if and .gpuProfile (not (hasKey $.Values.gpuProfiles .gpuProfile)) -}}
{{- $problems = append $problems (printf "tests.gpuProof.gpuProfile = %q is none of gpuProfiles: %s" .gpuProfile (keys $.Values.gpuProfiles | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .model .randomWeights -}}
{{- $problems = append $problems (printf "tests.gpuProof.randomWeights = %q must be empty with tests.gpuProof.model = %q, which has weights" .randomWeights .model) -}}
{{- end -}}
{{- if and .enabled $.Values.image.digest (not .image.tag) (not .image.digest) -}}
{{- $problems = append $problems "tests.gpuProof.image.digest is required with tests.gpuProof.enabled and image.digest, or tests.gpuProof.image.tag: it is another image, of target proof" -}}
{{- end -}}
{{- end -}}
{{- $tasks := dict -}}
{{- $deployments := dict -}}
{{- range $key, $model := default dict .Values.models -}}
{{- $name := default $key $model.name -}}
{{- $_ := set $tasks $name (default "generate" $model.task) -}}
{{- $deployment := regexReplaceAll "[^A-Za-z0-9_-]+" $name "-" -}}
{{- $other := get $deployments $deployment -}}
{{- if and $other (ne $other $name) -}}
{{- $problems = append $problems (printf "models.%s.name = %q and %q are the same deployment to Ray Serve, Engine-%s: they must differ in letters or digits" $key $name $other $deployment) -}}
{{- end -}}
{{- $_ := set $deployments $deployment $name -}}
{{- end -}}
{{- with .Values.tests.model -}}
{{- if not (hasKey $tasks .) -}}
{{- $problems = append $problems (printf "tests.model = %q is none of the models: %s" . (keys $tasks | sortAlpha | join ", ")) -}}
{{- else if eq (get $tasks .) "embed" -}}
{{- $problems = append $problems (printf "tests.model = %q has task = embed: `helm test` asks for a completion" .) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
