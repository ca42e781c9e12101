WITH victims AS (
  SELECT machine, victim_task AS task, signal, began, coalesce(closed, updated) AS ended FROM incidents WHERE NOT follows
), teaching AS (
  SELECT s.job, s.platform, s.signal, s.variant, s.machine, s.task, s.ts,
         CAST(s.cpu AS DOUBLE) AS cpu, CAST(s.cost AS DOUBLE) AS cost,
         exp({log_weight} * ({now_hour} - floor({sample_ms} / {hour_ms}))) AS w
  FROM samples s
  ANTI JOIN victims i ON i.machine = s.machine AND i.task = s.task AND i.signal = s.signal AND s.ts >= i.began AND s.ts <= i.ended
  WHERE (s.flags & {excluded_flags}) = 0 AND s.ts <= {now}
    AND ({sample_filter})
), tasks AS (
  SELECT job, platform, signal, variant, count(*) AS n, sum(w) AS sw, sum(w * w) AS sw2,
         sum(w * cpu) AS swu, sum(w * cost) AS swc, sum(w * cost * cost) AS swcc, max(ts) AS newest
  FROM teaching GROUP BY job, platform, signal, variant, machine, task
), keys AS (
  SELECT job, platform, signal, variant, count(*) AS tasks, count(*) FILTER (WHERE n >= {min_samples}) AS enough,
         sum(n) AS n, sum(sw) AS w, sum(sw2) AS w2, sum(swu) / sum(sw) AS cpu, sum(swc) / sum(sw) AS mean,
         sum(greatest(swcc - swc * swc / sw, 0e0)) AS inner_m2,
         sum(swc * swc / sw) - sum(swc) * sum(swc) / sum(sw) AS outer_m2, max(newest) AS newest
  FROM tasks GROUP BY job, platform, signal, variant
)
SELECT job, platform, signal, variant,
       CASE WHEN tasks < {min_tasks} THEN 'insufficient'
            WHEN enough < {min_tasks} THEN 'learning'
            WHEN {now_ms} - {newest_ms} > {stale_ms} THEN 'stale'
            ELSE 'ready' END AS state,
       enough AS tasks, CAST(n AS BIGINT) AS num_samples, cpu AS cpu_usage_mean, mean AS cost_mean,
       CASE WHEN n < 2 OR w - w2 / w <= 0 THEN 0e0
            ELSE sqrt(greatest(inner_m2 + outer_m2, 0e0) / (w - w2 / w)) END AS cost_stddev,
       {newest_ms} AS newest_sample
FROM keys ORDER BY job, platform, signal, variant
