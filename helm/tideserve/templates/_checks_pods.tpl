{{/*
What of a pod's values contradict each other, by the rules of Kubernetes's API server that its schema does not hold. As a
YAML list of sentences.
*/}}
{{- define "tideserve.checks.pods" -}}
{{- $problems := list -}}
{{- range $path := list "head.tolerations" "ingressWorkers.tolerations" "gpuProfiles.*.tolerations" "modelCache.preDownload.tolerations" -}}
{{- range $found := include "tideserve.at" (list $ (printf "%s.*" $path)) | fromJsonArray -}}
{{- $problems = concat $problems (include "tideserve.checks.toleration" $found | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- range $place := list "head" "ingressWorkers" "gpuProfiles.*" -}}
{{- range $found := include "tideserve.at" (list $ (printf "%s.affinity" $place)) | fromJsonArray -}}
{{- $problems = concat $problems (include "tideserve.checks.affinity" $found | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- range $path := list "head" "ingressWorkers" "autoscaler" "modelCache.preDownload" -}}
{{- range $found := include "tideserve.at" (list $ (printf "%s.resources" $path)) | fromJsonArray -}}
{{- $problems = concat $problems (include "tideserve.checks.resources" $found | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- range $path := list "extraEnv" "head.env" "ingressWorkers.env" "gpuProfiles.*.env" -}}
{{- range $found := include "tideserve.at" (list $ $path) | fromJsonArray -}}
{{- $problems = concat $problems (include "tideserve.checks.env" $found | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- concat $problems
      (fromYamlArray (include "tideserve.checks.memory" .))
      (fromYamlArray (include "tideserve.checks.volumes" .))
      (fromYamlArray (include "tideserve.checks.security" .)) | toYaml -}}
{{- end -}}

{{/* `tideserve.find` from the root of the values. Arguments: a list of the root and the path as text. */}}
{{- define "tideserve.at" -}}
{{- include "tideserve.find" (dict "value" (index . 0).Values "path" (splitList "." (index . 1)) "at" "") -}}
{{- end -}}

{{/* A quantity as a number. */}}
{{- define "tideserve.number" -}}
{{- $text := toString . -}}
{{- $factors := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $suffix := regexFind "[A-Za-z]*$" $text -}}
{{- $factor := ternary (get $factors $suffix) 1.0 (hasKey $factors $suffix) -}}
{{- printf "%f" (mulf (regexFind "^[0-9.]*" $text | float64) $factor) -}}
{{- end -}}

{{- define "tideserve.checks.toleration" -}}
{{- $problems := list -}}
{{- $at := .at -}}
{{- with .value -}}
{{- if and (eq (default "" .operator) "Exists") .value -}}
{{- $problems = append $problems (printf "%s.value = %q must be empty with operator = Exists, which tolerates any value: leave it out, or set operator to Equal" $at (toString .value)) -}}
{{- end -}}
{{- if and (not .key) (ne (default "" .operator) "Exists") -}}
{{- $problems = append $problems (printf "%s.key is empty with operator = %s: it must be the taint's key, or operator must be Exists" $at (default "Equal" .operator)) -}}
{{- end -}}
{{- if and (hasKey . "tolerationSeconds") (ne (default "" .effect) "NoExecute") -}}
{{- $problems = append $problems (printf "%s.tolerationSeconds = %v must be absent with effect = %q: it is for NoExecute" $at .tolerationSeconds (default "" .effect)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.affinity" -}}
{{- $problems := list -}}
{{- $node := printf "%s.nodeAffinity" .at -}}
{{- with (default dict .value).nodeAffinity -}}
{{- $terms := list -}}
{{- with .requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $at := printf "%s.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms" $node -}}
{{- if not .nodeSelectorTerms -}}
{{- $problems = append $problems (printf "%s is empty: it must have at least one term" $at) -}}
{{- end -}}
{{- range $index, $term := default list .nodeSelectorTerms -}}
{{- $terms = append $terms (dict "at" (printf "%s[%d]" $at $index) "value" $term) -}}
{{- end -}}
{{- end -}}
{{- range $index, $preferred := default list .preferredDuringSchedulingIgnoredDuringExecution -}}
{{- $at := printf "%s.preferredDuringSchedulingIgnoredDuringExecution[%d]" $node $index -}}
{{- $problems = concat $problems (include "tideserve.checks.weight" (dict "at" $at "value" $preferred) | fromYamlArray) -}}
{{- $terms = append $terms (dict "at" (printf "%s.preference" $at) "value" $preferred.preference) -}}
{{- end -}}
{{- range $term := $terms -}}
{{- range $index, $expression := default list (default dict $term.value).matchExpressions -}}
{{- $problems = concat $problems (include "tideserve.checks.expression" (dict "at" (printf "%s.matchExpressions[%d]" $term.at $index) "value" $expression) | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "podAffinity" "podAntiAffinity" -}}
{{- with get (default dict $.value) $kind -}}
{{- $at := printf "%s.%s" $.at $kind -}}
{{- range $index, $term := default list .requiredDuringSchedulingIgnoredDuringExecution -}}
{{- if not $term.topologyKey -}}
{{- $problems = append $problems (printf "%s.requiredDuringSchedulingIgnoredDuringExecution[%d].topologyKey is empty: it must be a node's label, such as kubernetes.io/hostname" $at $index) -}}
{{- end -}}
{{- end -}}
{{- range $index, $term := default list .preferredDuringSchedulingIgnoredDuringExecution -}}
{{- $problems = concat $problems (include "tideserve.checks.weight" (dict "at" (printf "%s.preferredDuringSchedulingIgnoredDuringExecution[%d]" $at $index) "value" $term) | fromYamlArray) -}}
{{- if not (dig "podAffinityTerm" "topologyKey" "" $term) -}}
{{- $problems = append $problems (printf "%s.preferredDuringSchedulingIgnoredDuringExecution[%d].podAffinityTerm.topologyKey is empty: it must be a node's label, such as kubernetes.io/hostname" $at $index) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.weight" -}}
{{- $weight := int .value.weight -}}
{{- if or (lt $weight 1) (gt $weight 100) -}}
{{- list (printf "%s.weight = %d must be at least 1 and at most 100" .at $weight) | toYaml -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- define "tideserve.checks.expression" -}}
{{- $problems := list -}}
{{- $operator := default "" .value.operator -}}
{{- $values := len (default list .value.values) -}}
{{- if not (regexMatch "^(In|NotIn|Exists|DoesNotExist|Gt|Lt)$" $operator) -}}
{{- $problems = append $problems (printf "%s.operator = %q must be In, NotIn, Exists, DoesNotExist, Gt or Lt" .at $operator) -}}
{{- else if and (has $operator (list "In" "NotIn")) (eq $values 0) -}}
{{- $problems = append $problems (printf "%s.values is empty with operator = %s: it must have at least one value" .at $operator) -}}
{{- else if and (has $operator (list "Exists" "DoesNotExist")) (gt $values 0) -}}
{{- $problems = append $problems (printf "%s.values = %s must be absent with operator = %s" .at (toJson .value.values) $operator) -}}
{{- else if and (has $operator (list "Gt" "Lt")) (ne $values 1) -}}
{{- $problems = append $problems (printf "%s.values = %s must be one number with operator = %s" .at (toJson .value.values) $operator) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/* Of containers without a GPU: all but the engines', whose resources the profile makes. */}}
{{- define "tideserve.checks.resources" -}}
{{- $problems := list -}}
{{- $at := .at -}}
{{- $limits := default dict (default dict .value).limits -}}
{{- $requests := default dict (default dict .value).requests -}}
{{- range $name, $asked := $requests -}}
{{- if hasKey $limits $name -}}
{{- if gt (include "tideserve.number" $asked | float64) (include "tideserve.number" (get $limits $name) | float64) -}}
{{- $problems = append $problems (printf "%s.requests.%s = %v is above %s.limits.%s = %v: a request must be at most the limit" $at $name $asked $at $name (get $limits $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $what, $amounts := dict "limits" $limits "requests" $requests -}}
{{- range $name, $amount := $amounts -}}
{{- if and (contains "/" $name) (gt (include "tideserve.number" $amount | float64) 0.0) -}}
{{- $problems = append $problems (printf "%s.%s has %s = %v, which must be absent: only pods of gpuProfiles hold engines, and this one would keep a device idle or wait for it" $at $what $name $amount) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.memory" -}}
{{- $problems := list -}}
{{- range $name, $profile := .Values.gpuProfiles -}}
{{- $at := printf "gpuProfiles.%s.%s" $name (ternary "perGpu" "perPod" (eq $profile.device "gpu")) -}}
{{- $size := default $profile.perPod $profile.perGpu -}}
{{- if ge (include "tideserve.number" $size.shm | float64) (include "tideserve.number" $size.memory | float64) -}}
{{- $problems = append $problems (printf "%s.shm = %s must be below %s.memory = %s: shared memory counts as memory" $at $size.shm $at $size.memory) -}}
{{- end -}}
{{- end -}}
{{- range $place := list "head" "ingressWorkers" -}}
{{- $resources := default dict (get $.Values $place).resources -}}
{{- range $what := list "limits" "requests" -}}
{{- $memory := dig $what "memory" "" $resources -}}
{{- if and $memory (le (include "tideserve.number" $memory | float64) 1073741824.0) -}}
{{- $problems = append $problems (printf "%s.resources.%s.memory = %v must be above the 1Gi of the pod's shared memory, which counts as memory" $place $what $memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ingress := dig "requests" "cpu" "0" (default dict .Values.ingressWorkers.resources) -}}
{{- $cpus := include "tideserve.number" $ingress | float64 -}}
{{- $each := float64 (ternary .Values.app.ingress.cpus_per_replica 0.5 (hasKey .Values.app.ingress "cpus_per_replica")) -}}
{{- $most := int (dig "autoscaling" "max_replicas" 4 .Values.app.ingress) -}}
{{- if gt $each 0.0 -}}
{{- $held := mul (floor (divf $cpus $each) | int) (int .Values.ingressWorkers.maxWorkers) -}}
{{- if gt $each $cpus -}}
{{- $problems = append $problems (printf "app.ingress.cpus_per_replica = %v is above ingressWorkers.resources.requests.cpu = %v: no pod holds a replica" $each $ingress) -}}
{{- else if gt $most (int $held) -}}
{{- $problems = append $problems (printf "app.ingress.autoscaling.max_replicas = %d is above the %d replicas that ingressWorkers.maxWorkers = %d pods of %v CPUs hold" $most (int $held) (int .Values.ingressWorkers.maxWorkers) $ingress) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.env" -}}
{{- $problems := list -}}
{{- $seen := dict -}}
{{- $list := .at -}}
{{- range $index, $variable := default list .value -}}
{{- $at := printf "%s[%d]" $list $index -}}
{{- if hasKey $seen $variable.name -}}
{{- $problems = append $problems (printf "%s.name = %q is that of %s too: only the last would count" $at $variable.name (get $seen $variable.name)) -}}
{{- end -}}
{{- $_ := set $seen $variable.name $at -}}
{{- if hasKey $variable "valueFrom" -}}
{{- if $variable.value -}}
{{- $problems = append $problems (printf "%s has value = %q and valueFrom: it must have one of them" $at (toString $variable.value)) -}}
{{- end -}}
{{- $sources := keys (default dict $variable.valueFrom) | sortAlpha -}}
{{- if ne (len $sources) 1 -}}
{{- $problems = append $problems (printf "%s.valueFrom must have one source, and it has %d: %s" $at (len $sources) (join ", " $sources)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.volumes" -}}
{{- $problems := list -}}
{{- $names := list "tmp" "home" "shm" -}}
{{- $ours := append (append $names "models") "api-keys" -}}
{{- range $index, $volume := default list .Values.extraVolumes -}}
{{- $at := printf "extraVolumes[%d]" $index -}}
{{- if has $volume.name $ours -}}
{{- $problems = append $problems (printf "%s.name = %q must be another: the chart has a volume of that name" $at $volume.name) -}}
{{- else if has $volume.name $names -}}
{{- $problems = append $problems (printf "%s.name = %q is the name of two volumes" $at $volume.name) -}}
{{- end -}}
{{- $names = append $names $volume.name -}}
{{- $sources := keys (omit $volume "name") | sortAlpha -}}
{{- if ne (len $sources) 1 -}}
{{- $problems = append $problems (printf "%s must have one source, such as configMap, secret or emptyDir, and it has %d: %s" $at (len $sources) (join ", " $sources)) -}}
{{- end -}}
{{- end -}}
{{- $paths := dict "/tmp" "the chart's tmp" "/home/tideserve" "the chart's home" "/dev/shm" "the chart's shm" "/etc/tideserve/secrets" "the chart's api-keys" -}}
{{- if ne .Values.modelCache.type "none" -}}
{{- $_ := set $paths (trimSuffix "/" .Values.modelCache.mountPath) "modelCache" -}}
{{- end -}}
{{- range $index, $mount := default list .Values.extraVolumeMounts -}}
{{- $at := printf "extraVolumeMounts[%d]" $index -}}
{{- if not (has $mount.name $names) -}}
{{- $problems = append $problems (printf "%s.name = %q is no volume of every pod: %s" $at $mount.name (join ", " $names)) -}}
{{- end -}}
{{- $path := trimSuffix "/" $mount.mountPath -}}
{{- if hasKey $paths $path -}}
{{- $problems = append $problems (printf "%s.mountPath = %q is where %s is mounted already" $at $mount.mountPath (get $paths $path)) -}}
{{- end -}}
{{- $_ := set $paths $path $at -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "tideserve.checks.security" -}}
{{- $problems := list -}}
{{- $pod := default dict .Values.podSecurityContext -}}
{{- $own := default dict .Values.securityContext -}}
{{- $user := ternary $own.runAsUser $pod.runAsUser (hasKey $own "runAsUser") -}}
{{- $place := ternary "securityContext" "podSecurityContext" (hasKey $own "runAsUser") -}}
{{- $ordinary := ternary $own.runAsNonRoot $pod.runAsNonRoot (hasKey $own "runAsNonRoot") -}}
{{- if and $ordinary (not (kindIs "invalid" $user)) (eq (int $user) 0) -}}
{{- $problems = append $problems (printf "%s.runAsUser = 0 is root, and runAsNonRoot = true forbids it: the image's user is 1000" $place) -}}
{{- end -}}
{{- $escalates := ternary $own.allowPrivilegeEscalation true (hasKey $own "allowPrivilegeEscalation") -}}
{{- if and $own.privileged (not $escalates) -}}
{{- $problems = append $problems "securityContext.privileged = true must be false with allowPrivilegeEscalation = false" -}}
{{- end -}}
{{- if and (has "SYS_ADMIN" (dig "capabilities" "add" list $own)) (not $escalates) -}}
{{- $problems = append $problems "securityContext.capabilities.add has SYS_ADMIN, which must be absent with allowPrivilegeEscalation = false" -}}
{{- end -}}
{{- range $place, $context := dict "podSecurityContext" $pod "securityContext" $own -}}
{{- with $context.seccompProfile -}}
{{- if and (eq (default "" .type) "Localhost") (not .localhostProfile) -}}
{{- $problems = append $problems (printf "%s.seccompProfile.localhostProfile is empty with type = Localhost: it must be the profile's file" $place) -}}
{{- else if and (ne (default "" .type) "Localhost") .localhostProfile -}}
{{- $problems = append $problems (printf "%s.seccompProfile.localhostProfile = %q must be absent with type = %q" $place .localhostProfile (default "" .type)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
